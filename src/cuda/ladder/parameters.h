// The parameters of the kernels of the ladder: those of sm80, and the intermediate results in
// global memory.
#pragma once

#include "cuda/sm80/parameters.h"

namespace tilewise::cuda::ladder {

using problem::Problem;
using problem::Sequence;

// The number of a sequence's first row. Rows are numbered like those of lse: (B, H, Sq), packed
// (H, T).
TILEWISE_INLINE std::int64_t first_row(const Problem& problem, const Sequence& sequence,
                                       std::int64_t head) {
  if (problem.q_packed) return head * problem.q_rows + sequence.q_start;
  return (sequence.batch * problem.heads + head) * problem.q_rows;
}

struct Parameters {
  sm80::Parameters tiles;
  float* out;            // flash1: (rows, value_stride), normalised for the keys so far
  float* states;         // flash1: (rows, 2), maximum and sum
  float* scores;         // standard: (rows, score_stride)
  float* products;       // standard: (rows, score_stride), Q K^T; nullptr if nobody reads it
  std::uint16_t* probs;  // standard: (rows, score_stride), in the inputs' type
  std::int64_t value_stride;
  std::int64_t score_stride;

  TILEWISE_INLINE std::int64_t first_row(const Sequence& sequence, std::int64_t head) const {
    return ladder::first_row(tiles.problem, sequence, head);
  }
};

// A compiled kernel, given by a row of its table and a type. CMakeLists.txt generates the source
// files that instantiate them.
template <int kRow, bool kFp16>
struct Flash1Kernel {
  static cudaError_t load();
  // blocks: one for each head of each sequence
  static cudaError_t start(const Parameters& parameters, std::int64_t blocks, cudaStream_t stream);
};
// The two products of standard attention. blocks: one for each tile of queries
template <int kRow, bool kFp16>
struct StandardKernel {
  static cudaError_t load();
  static cudaError_t start_scores(const Parameters& parameters, std::int64_t blocks,
                                  cudaStream_t stream);
  static cudaError_t start_values(const Parameters& parameters, std::int64_t blocks,
                                  cudaStream_t stream);
};

// P and lse from S, row by row. Rows are numbered in 32 bits: with 64 keys, S and P of more rows
// fill 768 GB.
inline constexpr std::int64_t kMaxScoreRows = (std::int64_t{1} << 31) - 1;
cudaError_t load_softmax();
cudaError_t start_softmax(const Parameters& parameters, int k_tile, cudaStream_t stream);

}  // namespace tilewise::cuda::ladder
