// The mask of a whole problem, as MagiAttention describes it: a list of slices over the token axes
// of the queries and the keys. Here each slice is a band (math/mask_rule.h) whose rows all see a
// key. Slices may overlap; a pair (query, key) that several of them show counts once.
#pragma once

#include <span>
#include <vector>

#include "distributed/magi/ranges.h"
#include "problem/status.h"

namespace tilewise::distributed::magi {

// A row of tilewise_problem::slices with six columns.
struct Slice {
  std::int64_t q_begin;
  std::int64_t q_end;
  std::int64_t k_begin;
  std::int64_t k_end;
  std::int64_t kind;  // math::SliceKind
  std::int64_t head;  // -1: all
};

struct MaskBand {
  math::Band band;    // trimmed: see trim()
  std::int64_t head;  // -1: all
};

struct Mask {
  std::int64_t q_len = 0;
  std::int64_t k_len = 0;
  std::int64_t heads = 1;  // 1, or H if a slice names a head: then areas are sums over the heads
  std::vector<MaskBand> bands;
};

// Removes the rows that see no key at either end of the band, moves the edges of slope 0 into
// key_begin and key_end, and cuts the keys that no row sees. False: no row sees a key. The rows of
// a trimmed band see a single range of keys together, [begin(first row), end(last row)), since both
// edges move by at most one key from a row to the next.
bool trim(math::Band& band);

// Returns the part of the band in [rows) x [keys), not trimmed.
math::Band crop(const math::Band& band, const Range& rows, const Range& keys);

// Appends the slices that show the pairs of a trimmed band, at most three, each moved by the
// shifts: where the rectangle's sides cut an edge, the rows above and below the cut are slices of
// their own.
void append_slices(const MaskBand& entry, std::int64_t q_shift, std::int64_t k_shift,
                   std::vector<Slice>& slices);

// Makes the mask of a list. `heads` is H. Errors: a negative length, a slice outside of
// 0..q_len x 0..k_len, an unknown kind, a head that is not below H, more pairs than int64 holds.
problem::Status mask_of_slices(std::span<const Slice> slices, std::int64_t q_len,
                               std::int64_t k_len, std::int64_t heads, Mask* mask);

// Options of attention without slices: the window of every document, or of the only sequence.
struct WindowOptions {
  std::int64_t left = -1;  // as in problem::Problem: causal is right = 0
  std::int64_t right = -1;
  bool top_left = false;
};

// Makes the mask of packed documents with the starts cu_seqlens_q and cu_seqlens_k (B + 1 each,
// ascending from 0 to the length). A dense sequence is one document.
problem::Status mask_of_documents(std::span<const std::int64_t> cu_seqlens_q,
                                  std::span<const std::int64_t> cu_seqlens_k,
                                  const WindowOptions& window, Mask* mask);

}  // namespace tilewise::distributed::magi
