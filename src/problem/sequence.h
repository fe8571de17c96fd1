// The sequences of a problem: where the rows of each one begin, how long it is, and which bands of
// keys its rows see. The functions read the contents of cu_seqlens, seqused_q, seqused_k, slices
// and parts, which may hold anything: they are clamped, never trusted.
#pragma once

#include "problem/problem.h"

namespace tilewise::problem {

struct Sequence {
  std::int64_t batch;    // number of the sequence; the batch index of dense views
  std::int64_t q_start;  // first row on the query side (0 when dense)
  std::int64_t q_len;    // the effective Sq, after cu_seqlens_q and seqused_q
  std::int64_t k_start;
  std::int64_t k_len;     // the effective Sk, after cu_seqlens_k and seqused_k
  std::int64_t diagonal;  // d of the semantics
};

// Fills table[0 .. problem.batch). Sequences of a packed side never overlap and stay inside the
// tensor: a start before the end of the previous sequence is moved up to it. O(B), no allocation.
void fill_sequences(const Problem& problem, Sequence* table);

// The place of a sequence in the whole sequence that it is a part of (the tensor `parts`). Without
// parts every sequence is a whole.
struct Part {
  std::int64_t number;    // of the whole: dropout counts sequences by it
  std::int64_t row;       // of the whole: the first query
  std::int64_t key;       // of the whole: the first key
  std::int64_t diagonal;  // d of the whole
};
// The bound of the numbers of a Part, so that sums of a few of them and of row numbers fit int64.
inline constexpr std::int64_t kMostOfWhole = std::int64_t{1} << 59;

// Returns the part that sequence `b` is; its numbers are within the bound. Its diagonal is 0
// without parts.
TILEWISE_INLINE Part part_of(const Problem& problem, std::int64_t b) {
  if (!problem.parts.present()) return {b, 0, 0, 0};
  std::int64_t numbers[4];
  for (int column = 0; column < 4; ++column) {
    numbers[column] =
        math::clamp(problem.parts.at(b, column), column == 3 ? -kMostOfWhole : 0, kMostOfWhole);
  }
  return {numbers[0], numbers[1], numbers[2], numbers[3]};
}

// Returns d of a part in the part's own coordinates: key + j <= row + i + d.
TILEWISE_INLINE std::int64_t diagonal_of(const Part& part) {
  return part.row + part.diagonal - part.key;
}

// The first counters of dropout for a head of a sequence: rows and keys are counted in the whole
// (math/philox.h).
struct DropoutOrigin {
  std::int64_t head_index;  // number of the whole * H + head; only its low 32 bits matter
  std::int64_t row;
  std::int64_t key;
};
TILEWISE_INLINE DropoutOrigin dropout_origin(const Problem& problem, std::int64_t b,
                                             std::int64_t head) {
  const Part part = part_of(problem, b);
  // The product may wrap around: the counter has 32 bits.
  const std::uint64_t index =
      static_cast<std::uint64_t>(part.number) * static_cast<std::uint64_t>(problem.heads) +
      static_cast<std::uint64_t>(head);
  return {static_cast<std::int64_t>(index), part.row, part.key};
}

// Fills the rows that belong to no sequence, or that it does not use: out = 0, lse = -inf; in the
// backward pass dq, dk and dv = 0. With `accumulate` these rows keep what they hold, and a row that
// is empty (lse = -inf) gets out = 0.
void fill_unowned_rows(const Problem& problem, const Sequence* table);

// Writes the bands that the rows of (sequence, head) see: one band without slices; with slices one
// for each slice of the head, in the order of the list. `bands` has room for max_bands(problem).
// Returns the number written.
std::int64_t max_bands(const Problem& problem);
std::int64_t sequence_bands(const Problem& problem, const Sequence& sequence, std::int64_t head,
                            math::Band* bands);

}  // namespace tilewise::problem
