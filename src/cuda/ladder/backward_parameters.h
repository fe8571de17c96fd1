// The parameters of the backward kernels of the ladder: those of the backward pass, and the
// intermediate results in global memory.
#pragma once

#include "cuda/backward/parameters.h"
#include "cuda/ladder/parameters.h"

namespace tilewise::cuda::ladder {

// The matrices of standard attention (rows, score_stride). Rows are those of first_row().
struct GradientParameters {
  backward::Parameters tiles;
  const float* scores;     // S, -inf where masked
  const float* products;   // Q K^T, with softcap only
  const float* dprobs;     // dP = dO V^T
  std::uint16_t* probs;    // P, after dropout, in the inputs' type
  std::uint16_t* dscores;  // dS
  std::int64_t score_stride;

  TILEWISE_INLINE std::int64_t first_row(const Sequence& sequence, std::int64_t head) const {
    return ladder::first_row(tiles.problem, sequence, head);
  }
};

// The two products that add up the rows of queries: dV = P^T dO and dK = dS^T Q.
enum class KeyProduct : std::int32_t { kValues, kKeys };

// A compiled backward kernel, given by a row of its table and a type.
template <int kRow, bool kFp16>
struct Flash1GradientKernel {
  static cudaError_t load();
  // Computes dK and dV and fills dq_sums. blocks: one for each kv head of each sequence
  static cudaError_t start(const backward::Parameters& parameters, std::int64_t blocks,
                           cudaStream_t stream);
  // Writes dQ from dq_sums. blocks: one for each tile of queries
  static cudaError_t start_dq(const backward::Parameters& parameters, std::int64_t blocks,
                              cudaStream_t stream);
};
template <int kRow, bool kFp16>
struct StandardGradientKernel {
  static cudaError_t load();
  // Writes dV or dK. blocks: one for each tile of keys
  static cudaError_t start_keys(const GradientParameters& parameters, KeyProduct product,
                                std::int64_t blocks, cudaStream_t stream);
  // Writes dQ = dS K. blocks: one for each tile of queries
  static cudaError_t start_queries(const GradientParameters& parameters, std::int64_t blocks,
                                   cudaStream_t stream);
};

// P and dS from S and dP, row by row.
cudaError_t load_score_gradients();
cudaError_t start_score_gradients(const GradientParameters& parameters, int k_tile,
                                  cudaStream_t stream);

}  // namespace tilewise::cuda::ladder
