// FlashAttention-1 (arXiv 2205.14135), Algorithm 4. A block computes a kv head, with tiles of keys
// in the outer loop and tiles of queries, of all query heads of the group, in the inner one. P is
// recomputed from LSE. Each pair of tiles loads dQ of its queries from global memory and stores it
// again. Unlike in the algorithm, delta is computed before, once for each row
// (backward/preprocess.cu).
#pragma once

#include "cuda/backward/sm80/non_finite_rows.cuh"
#include "cuda/backward/sm80/query_gradient.cuh"
#include "cuda/backward/sm80/score_gradient.cuh"
#include "cuda/backward/sm80/store_fragments.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/ladder/backward_parameters.h"
#include "cuda/ladder/kernel_table.h"

namespace tilewise::cuda::ladder {

using GradientConfig = backward::sm80::KernelConfig;

template <GradientConfig kConfig>
class Flash1Gradient : public backward::sm80::ScoreGradient<kConfig> {
 public:
  using Base = backward::sm80::ScoreGradient<kConfig>;
  using Scores = typename Base::Scores;
  using Shared = backward::sm80::Shared<kConfig>;
  using KeyGradient = backward::sm80::WarpTile<kConfig.k_tile, kConfig.columns, kConfig.warps,
                                               kConfig.gradient_row_warps>;
  using QueryGradient = backward::sm80::QueryGradient<kConfig>;
  static constexpr int kThreads = kConfig.threads();

  __device__ __forceinline__ Flash1Gradient(const backward::Parameters& parameters, Shared& shared)
      : Base(parameters, shared) {}

  // The loops of Algorithm 4.
  __device__ __forceinline__ void run() {
    const Problem& problem = parameters_.problem;
    const auto keys =
        static_cast<std::int32_t>(problem.k_packed ? tile_.sequence.k_len : problem.k_rows);
    const auto group = static_cast<std::int32_t>(problem.heads > 0 ? problem.group : 0);
#pragma unroll 1
    for (std::int32_t first = 0; first < keys; first += kConfig.k_tile) {
      begin_key_tile(first);
#pragma unroll 1
      for (std::int32_t i = 0; i < group; ++i) {
        __syncthreads();  // no warp reads the last head's tiles or table any more
        if (threadIdx.x < 32) this->begin_head(tile_.kv_head * group + i);
        __syncthreads();
#pragma unroll 1
        for (std::int32_t q_tile = mask_.first_tile(); q_tile >= 0;
             q_tile = mask_.next_tile(q_tile)) {
          step(q_tile);
        }
      }
      store_key_tile();
    }
  }

 private:
  using Base::contains_non_finite_;
  using Base::mask_;
  using Base::parameters_;
  using Base::shared_;
  using Base::tile_;
  using NonFinite = backward::sm80::NonFiniteRows<kConfig.columns, kConfig.fp16, kThreads>;
  using Use = backward::sm80::Use;
  using Right = backward::sm80::RightOperand<kConfig.columns, Use::kAsStored>;
  template <Use kUse>
  using ScoresOf = backward::sm80::LeftOperand<kConfig.k_tile, kUse>;

  // Loads K and V of the tile of keys from key `first` on. Elements of K that are not finite become
  // zero, and their keys are flagged.
  __device__ __forceinline__ void begin_key_tile(std::int32_t first) {
    __syncthreads();  // no warp reads the last tile any more
    if (threadIdx.x == 0) tile_.first = first;
    for (int i = threadIdx.x; i < kConfig.k_tile; i += kThreads) shared_.non_finite_key[i] = 0;
    __syncthreads();
    this->fetch_keys();
    ptx::cp_async_wait<0>();
    __syncthreads();
    const bool found = NonFinite::template zero<kConfig.k_tile>(shared_.k, shared_.non_finite_key);
    has_non_finite_keys_ = __syncthreads_or(found);
    KeyGradient::clear(dk_);
    KeyGradient::clear(dv_);
  }

  // A tile of queries: Algorithm 4, lines 10 to 23.
  __device__ __forceinline__ void step(std::int32_t q_tile) {
    const bool non_finite = load_queries(q_tile);
    contains_non_finite_ = non_finite || has_non_finite_keys_;
    const tile::TileClass tile_class = mask_.tile_class(q_tile);
    typename Base::ScoreFactors factors;
    typename Scores::Fragments probs, gradients;
    this->multiply_qk(0, probs);  // S = Q K^T
    multiply_by_scale(probs);
    this->multiply_dov(0, gradients);                           // dP = dO V^T
    this->probs(q_tile, 0, tile_class, probs, factors);         // P = exp(S - LSE)
    this->gradients(0, tile_class, probs, factors, gradients);  // dS = P (dP - delta)
    backward::sm80::stage_fragments<Scores, kConfig.k_tile, kConfig.fp16>(probs, shared_.probs);
    backward::sm80::stage_fragments<Scores, kConfig.k_tile, kConfig.fp16>(gradients,
                                                                          shared_.gradients);
    __syncthreads();
    if (non_finite) separate_non_finite(q_tile);
    multiply_gradient(shared_.probs, shared_.dout[0], dv_);   // dV += P^T dO
    multiply_gradient(shared_.gradients, shared_.q[0], dk_);  // dK += dS^T Q
    if (parameters_.dq_sums != nullptr) add_dq(q_tile);       // dQ += dS K
  }

  // Loads Q and dO. Says whether they have elements that are not finite.
  __device__ __forceinline__ bool load_queries(std::int32_t q_tile) {
    __syncthreads();  // no warp reads the last tile any more
    this->fetch_queries(q_tile, 0);
    ptx::cp_async_wait<0>();
    __syncthreads();
    const bool found = NonFinite::template hold<kConfig.q_tile>(shared_.q[0]) ||
                       NonFinite::template hold<kConfig.q_tile>(shared_.dout[0]);
    return __syncthreads_or(found);
  }

  __device__ __forceinline__ void multiply_by_scale(typename Scores::Fragments& scores) const {
    const float scale = static_cast<float>(parameters_.problem.scale);
#pragma unroll
    for (auto& row_block : scores) {
#pragma unroll
      for (float& score : row_block) score *= scale;
    }
  }

  // A masked pair has P = 0 and dS = 0, but 0 * NaN is NaN. Elements of Q and dO that are not
  // finite become zero. A visible one of Q has made P NaN; what a visible one of dO contributes to
  // dV is added here.
  __device__ void separate_non_finite(std::int32_t q_tile) {
    for (int i = threadIdx.x; i < kConfig.q_tile; i += kThreads) shared_.non_finite_query[i] = 0;
    __syncthreads();
    NonFinite::template zero<kConfig.q_tile>(shared_.dout[0], shared_.non_finite_query);
    __syncthreads();
#pragma unroll 1
    for (int row = 0; row < kConfig.q_tile; ++row) {
      if (shared_.non_finite_query[row] == 0) continue;
      NonFinite::template add_row<KeyGradient, kConfig.k_tile>(shared_.probs, row, tile_.dout,
                                                               q_tile * kConfig.q_tile + row, dv_);
    }
    NonFinite::template zero<kConfig.q_tile>(shared_.q[0], shared_.non_finite_query);
    __syncthreads();
  }

  __device__ __forceinline__ static void multiply_gradient(const unsigned char* left,
                                                           const unsigned char* right,
                                                           typename KeyGradient::Fragments& to) {
    KeyGradient::template multiply<ScoresOf<Use::kTransposed>, Right, kConfig.q_tile, kConfig.fp16,
                                   false>(left, right, {}, to);
  }

  // Loads dQ, adds dS K, and stores it. The block owns these rows, and a lane always the same
  // numbers of them, so that their order is fixed.
  __device__ __forceinline__ void add_dq(std::int32_t q_tile) const {
    float* const sums =
        backward::sm80::lane_dq_sums<kConfig>(parameters_, tile_.first_query_tile + q_tile, 0);
    constexpr int kRow = QueryGradient::kCount;  // numbers of a row block
    typename QueryGradient::Fragments dq;
#pragma unroll
    for (int i = 0; i < QueryGradient::kRowBlocks * kRow; ++i)
      dq[i / kRow][i % kRow] = sums[32 * i];
    QueryGradient::template multiply<ScoresOf<Use::kAsStored>, Right, kConfig.k_tile, kConfig.fp16,
                                     false>(shared_.gradients, shared_.k, {}, dq);
#pragma unroll
    for (int i = 0; i < QueryGradient::kRowBlocks * kRow; ++i)
      sums[32 * i] = dq[i / kRow][i % kRow];
  }

  // Stores dK and dV.
  __device__ __forceinline__ void store_key_tile() const {
    const Problem& problem = parameters_.problem;
    if (problem.dk.present()) {
      backward::sm80::store_fragments<KeyGradient, kConfig.fp16>(
          backward::key_destination(parameters_, tile_, kConfig.k_tile, problem.dk,
                                    problem.head_dim, problem.scale),
          dk_);
    }
    if (problem.dv.present()) {
      backward::sm80::store_fragments<KeyGradient, kConfig.fp16>(
          backward::key_destination(parameters_, tile_, kConfig.k_tile, problem.dv,
                                    problem.value_dim, 1),
          dv_);
    }
  }

  bool has_non_finite_keys_ = false;
  typename KeyGradient::Fragments dk_, dv_;
};

// A block computes a kv head of a sequence. The row and the type select the configuration.
template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kFlash1Gradients[kRow].config(kFp16).threads(),
                                  kFlash1Gradients[kRow].config(kFp16).blocks)
    flash1_backward_kernel(const __grid_constant__ backward::Parameters parameters) {
  constexpr GradientConfig kConfig = kFlash1Gradients[kRow].config(kFp16);
  auto& shared = *reinterpret_cast<backward::sm80::Shared<kConfig>*>(dynamic_shared());
  if (threadIdx.x == 0) {
    const auto kv_heads = static_cast<std::int32_t>(parameters.problem.kv_heads);
    const std::int32_t index = static_cast<std::int32_t>(blockIdx.x);
    shared.tile.sequence = sequence_at(parameters.problem, parameters.table, index / kv_heads);
    shared.tile.kv_head = index % kv_heads;
    backward::set_key_rows(parameters, shared.tile);
  }
  __syncthreads();
  Flash1Gradient<kConfig>(parameters, shared).run();
}

template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kFlash1Gradients[kRow].config(kFp16).threads())
    flash1_dq_kernel(const __grid_constant__ backward::Parameters parameters) {
  backward::sm80::write_dq<kFlash1Gradients[kRow].config(kFp16)>(parameters);
}

template <int kRow, bool kFp16>
inline constexpr int kFlash1GradientBytes =
    sizeof(backward::sm80::Shared<kFlash1Gradients[kRow].config(kFp16)>);

template <int kRow, bool kFp16>
cudaError_t Flash1GradientKernel<kRow, kFp16>::load() {
  constexpr int kBytes = kFlash1GradientBytes<kRow, kFp16>;
  static_assert(kBytes <= kFlash1Gradients[kRow].shared_bytes,
                "A row of the table fits the shared memory that it is for.");
  const cudaError_t error = cuda::load(flash1_backward_kernel<kRow, kFp16>, kBytes);
  return error == cudaSuccess ? cuda::load(flash1_dq_kernel<kRow, kFp16>) : error;
}

template <int kRow, bool kFp16>
cudaError_t Flash1GradientKernel<kRow, kFp16>::start(const backward::Parameters& parameters,
                                                     std::int64_t blocks, cudaStream_t stream) {
  constexpr int kThreads = kFlash1Gradients[kRow].config(kFp16).threads();
  return launch(flash1_backward_kernel<kRow, kFp16>,
                {blocks, kThreads, kFlash1GradientBytes<kRow, kFp16>}, stream, parameters);
}

template <int kRow, bool kFp16>
cudaError_t Flash1GradientKernel<kRow, kFp16>::start_dq(const backward::Parameters& parameters,
                                                        std::int64_t blocks, cudaStream_t stream) {
  constexpr int kThreads = kFlash1Gradients[kRow].config(kFp16).threads();
  return launch(flash1_dq_kernel<kRow, kFp16>, {blocks, kThreads}, stream, parameters);
}

}  // namespace tilewise::cuda::ladder
