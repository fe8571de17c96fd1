// What the kernels of the ladder are given: what any kernel of tiles of queries is, and where the
// results between them lie.
#pragma once

#include "cuda/sm80/parameters.h"

namespace tilewise::cuda::ladder {

using problem::Problem;
using problem::Sequence;

// Rows are numbered as lse is: (B, H, Sq), packed (H, T).
struct Parameters {
  sm80::Parameters tiles;
  float* out;            // flash1: (rows, value_stride), what is seen so far, divided by its sum
  float* states;         // flash1: (rows, 2), maximum and sum
  float* scores;         // standard: (rows, score_stride)
  std::uint16_t* probs;  // standard: (rows, score_stride), of the inputs' type
  std::int64_t value_stride;
  std::int64_t score_stride;

  // The number of a sequence's first row.
  TILEWISE_INLINE std::int64_t first_row(const Sequence& sequence, std::int64_t head) const {
    const Problem& problem = tiles.problem;
    if (problem.q_packed) return head * problem.q_rows + sequence.q_start;
    return (sequence.batch * problem.heads + head) * problem.q_rows;
  }
};

// The compiled kernels: a row of a table and a type each. Each is instantiated in a source file
// that CMakeLists.txt makes.
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

// Probabilities and lse from scores, a row at a time. Rows are numbered in 32 bits: at 64 keys, S
// and P of more fill 768 GB.
inline constexpr std::int64_t kMostScoreRows = (std::int64_t{1} << 31) - 1;
cudaError_t load_softmax();
cudaError_t start_softmax(const Parameters& parameters, int k_tile, cudaStream_t stream);

}  // namespace tilewise::cuda::ladder
