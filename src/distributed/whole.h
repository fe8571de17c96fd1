// The whole problem, of which every rank has a part: its sequences, and which keys of one range of
// tokens the queries of another see.
#pragma once

#include <vector>

#include "distributed/schedule.h"
#include "problem/problem.h"
#include "problem/sequence.h"
#include "problem/status.h"

namespace tilewise::distributed {

using problem::Status;

struct Lengths {
  std::int64_t q;  // of the whole query side: Sq, or T if it is packed
  std::int64_t k;
};

struct Whole {
  problem::Problem problem;                  // with the shapes of the whole; it has no data
  std::vector<problem::Sequence> sequences;  // (B)
  bool uniform = false;                      // the sequences are dense and have the same lengths
  // Copies of cu_seqlens and seqused that are on a device, in an order of no consequence.
  std::vector<std::vector<std::int64_t>> lists;
};

// Returns the dimension of the rows of a q- or k-like tensor.
int row_dimension(const tilewise_tensor& tensor, std::int32_t layout);

// Refuses tensors that are not on the device of q, by name.
Status check_devices(const tilewise_problem& request);

// Refuses a score function: an address is of no use to other processes.
Status refuse_score_function(const tilewise_problem& request);

// Makes the whole of a rank's problem, which has any number of rows on the query and the key side.
// It checks every option, and reads and checks the contents of cu_seqlens and seqused. If they are
// on a device, it waits for copies of them.
Status make_whole(problem::Operation operation, const tilewise_problem& request, Lengths lengths,
                  Whole* whole);

// A sequence's part of a range of queries and of a range of keys. Row and key are positions in the
// sequence; the keys that the part's row i sees are those of `band`, in rows of the two ranges
// counted from the part's first ones.
struct SequencePart {
  std::int64_t q_begin = 0;  // rows of the range of queries
  std::int64_t q_end = 0;
  std::int64_t k_begin = 0;  // rows of the range of keys
  std::int64_t k_end = 0;
  std::int64_t first_row = 0;
  std::int64_t first_key = 0;
  math::Band band;

  bool empty() const { return q_begin >= q_end || k_begin >= k_end; }
};

// Both ranges have one stride.
SequencePart sequence_part(const Whole& whole, const problem::Sequence& sequence,
                           const TokenRange& queries, const TokenRange& keys);

// Returns the rows of the range of keys from the first to the last that any query of the other
// range sees.
math::KeyRange visible_rows(const Whole& whole, const TokenRange& queries, const TokenRange& keys);

// Returns the number of visible pairs of a query and a key of one head, over all sequences.
std::int64_t visible_pairs(const Whole& whole, const TokenRange& queries, const TokenRange& keys);

// Returns the number of keys that the band's rows of [row_begin, row_end) see, in O(1).
std::int64_t band_area(const math::Band& band, std::int64_t row_begin, std::int64_t row_end);

// Returns the schedule that "automatic" means: contiguous, which sends the least, unless zigzag
// spares the rank with the most visible pairs at least 5 % of them.
Schedule choose_schedule(const Whole& whole, Lengths lengths, std::int32_t size);

}  // namespace tilewise::distributed
