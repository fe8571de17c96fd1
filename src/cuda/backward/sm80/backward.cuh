// The backward kernel for Ampere and later: FlashAttention-2 (arXiv 2307.08691), Algorithm 2. A
// block owns one tile of keys and visits the queries that see it, of all query heads of the group.
#pragma once

#include "cuda/backward/block_turns.cuh"
#include "cuda/backward/hidden_values.cuh"
#include "cuda/backward/sm80/bias_gradient.cuh"
#include "cuda/backward/sm80/kernel.h"
#include "cuda/backward/sm80/non_finite_rows.cuh"
#include "cuda/backward/sm80/query_gradient.cuh"
#include "cuda/backward/sm80/score_gradient.cuh"
#include "cuda/backward/sm80/store_fragments.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/ptx/reduction.cuh"
#include "cuda/sm80/cp_async_tile.cuh"
#include "cuda/tile/slow_path.cuh"

namespace tilewise::cuda::backward::sm80 {

template <KernelConfig kConfig>
class Backward : public ScoreGradient<kConfig> {
 public:
  using Base = ScoreGradient<kConfig>;
  using Scores = typename Base::Scores;
  using KeyGradient =
      WarpTile<kConfig.k_tile, kConfig.columns, kConfig.warps, kConfig.gradient_row_warps>;
  using QueryGradient = sm80::QueryGradient<kConfig>;
  static constexpr int kThreads = kConfig.threads();

  __device__ __forceinline__ Backward(const Parameters& parameters, Shared<kConfig>& shared)
      : Base(parameters, shared),
        gradient_offsets_(KeyGradient::template offsets<ScoresOf<Use::kTransposed>, Right>()),
        query_offsets_(QueryGradient::template offsets<ScoresOf<Use::kAsStored>, Right>()) {}

  __device__ __forceinline__ void run() {
    load_keys();
    visit_group();
    if (__syncthreads_or(has_non_finite()) && hides_non_finite()) {
      if (threadIdx.x == 0) tile::count_slow_path(tile::SlowPath::kNonFinitePass);
      non_finite_pass_ = contains_non_finite_ = true;
      visit_group();
    }
    store();
  }

 private:
  using Base::contains_non_finite_;
  using Base::mask_;
  using Base::parameters_;
  using Base::shared_;
  using Base::tile_;
  using NonFinite = NonFiniteRows<kConfig.columns, kConfig.fp16, kThreads>;
  using Right = RightOperand<kConfig.columns, Use::kAsStored>;
  template <Use kUse>
  using ScoresOf = LeftOperand<kConfig.k_tile, kUse>;

  // Loads K and V. Elements of K that are not finite become zero, and their keys are flagged.
  __device__ __forceinline__ void load_keys() {
    this->fetch_keys();
    if (threadIdx.x == 0) shared_.pending_turn = -1;
    for (int i = threadIdx.x; i < kConfig.k_tile; i += kThreads) shared_.non_finite_key[i] = 0;
    ptx::cp_async_wait<0>();
    __syncthreads();
    const bool found = NonFinite::template zero<kConfig.k_tile>(shared_.k, shared_.non_finite_key);
    contains_non_finite_ = __syncthreads_or(found);
  }

  // Computes dK and dV, and adds to dQ unless this is the non-finite pass, which comes second.
  __device__ __forceinline__ void visit_group() {
    KeyGradient::clear(dk_);
    KeyGradient::clear(dv_);
    const std::int32_t group = static_cast<std::int32_t>(parameters_.problem.group);
    if (parameters_.problem.heads == 0) return;
    std::int32_t head = tile_.kv_head * group;
    do {
      __syncthreads();  // no warp reads the last head's tiles or table any more
      if (threadIdx.x < 32) this->begin_head(head);
      __syncthreads();
      visit_queries();
      head = tile_.head + 1;  // not kept: the main loop has no register for it
    } while (head < (tile_.kv_head + 1) * group);
  }

  __device__ __forceinline__ void visit_queries() {
    const BlockTurns<kConfig.q_tile, kConfig.k_tile> turns = {parameters_, tile_, mask_,
                                                              shared_.pending_turn, takes_turns()};
    std::int32_t q_tile = mask_.first_tile();
    if (q_tile >= 0) this->fetch_queries(q_tile, 0);
    for (int stage = 0; q_tile >= 0; stage = (stage + 1) % kConfig.stages) {
      ptx::cp_async_wait<0>();
      __syncthreads();
      turns.begin(q_tile);
      if constexpr (kConfig.stages == 2) fetch_next(q_tile, stage ^ 1);
      step(q_tile, stage, turns);
      if constexpr (kConfig.stages == 1) {
        __syncthreads();
        fetch_next(q_tile, 0);
      }
      q_tile = mask_.next_tile(q_tile);  // computed again: the step has no register for it
    }
    __syncthreads();
    turns.end_all();
  }

  __device__ __forceinline__ void fetch_next(std::int32_t q_tile, int stage) const {
    const std::int32_t next = mask_.next_tile(q_tile);
    if (next >= 0) this->fetch_queries(next, stage);
  }

  // Whether this pass adds to dQ.
  __device__ __forceinline__ bool adds_to_dq() const {
    return parameters_.dq_sums != nullptr && !non_finite_pass_;
  }
  __device__ __forceinline__ bool takes_turns() const {
    return parameters_.turns != nullptr && !non_finite_pass_;
  }

  // A tile of queries: Algorithm 2, lines 10 to 16.
  __device__ __forceinline__ void step(std::int32_t q_tile, int stage,
                                       const BlockTurns<kConfig.q_tile, kConfig.k_tile>& turns) {
    const tile::TileClass tile_class = mask_.tile_class(q_tile);
    typename Base::ScoreFactors factors;
    typename Scores::Fragments probs, gradients;
    this->multiply_qk(stage, probs);                                // S = Q K^T
    this->multiply_dov(stage, gradients);                           // dP = dO V^T
    this->probs(q_tile, stage, tile_class, probs, factors);         // P = exp(S - LSE)
    this->gradients(stage, tile_class, probs, factors, gradients);  // dS = P (dP - delta)
    this->drop(factors, probs);
    stage_fragments<Scores, kConfig.k_tile, kConfig.fp16>(probs, shared_.probs);
    stage_fragments<Scores, kConfig.k_tile, kConfig.fp16>(gradients, shared_.gradients);
    __syncthreads();
    if (non_finite_pass_) zero_non_finite_queries(q_tile, stage);
    turns.wait(q_tile);
    multiply_gradient(shared_.probs, shared_.dout[stage], dv_);   // dV += P^T dO
    multiply_gradient(shared_.gradients, shared_.q[stage], dk_);  // dK += dS^T Q
    if (adds_to_dq()) add_dq(q_tile);                             // dQ += dS K
  }

  __device__ __forceinline__ void multiply_gradient(const unsigned char* left,
                                                    const unsigned char* right,
                                                    typename KeyGradient::Fragments& to) const {
    KeyGradient::template multiply<ScoresOf<Use::kTransposed>, Right, kConfig.q_tile, kConfig.fp16,
                                   kConfig.keeps_offsets()>(left, right, gradient_offsets_, to);
  }

  __device__ __forceinline__ void add_dq(std::int32_t q_tile) const {
#pragma unroll 1
    for (int part = 0; part < kQueryParts<kConfig>; ++part) {
      // The 16-byte chunks of a part are whole groups of the swizzle.
      constexpr int kPartBytes = kConfig.columns / kQueryParts<kConfig> * 2;
      typename QueryGradient::Fragments dq;
      QueryGradient::clear(dq);
      QueryGradient::template multiply<ScoresOf<Use::kAsStored>, Right, kConfig.k_tile,
                                       kConfig.fp16, kConfig.keeps_offsets()>(
          shared_.gradients, shared_.k + part * kPartBytes, query_offsets_, dq);
      float* const sums = lane_dq_sums<kConfig>(parameters_, tile_.first_query_tile + q_tile, part);
#pragma unroll
      for (int i = 0; i < QueryGradient::kRowBlocks * QueryGradient::kCount; ++i)
        ptx::red_add(sums + 32 * i, dq[i / QueryGradient::kCount][i % QueryGradient::kCount]);
    }
  }

  // ---- non-finite values ----

  // A masked pair has P = 0 and dS = 0, but 0 * NaN is NaN. K is zero there from the start. If dK
  // or dV ends with a value that is not finite, and Q or dO hides one, a second pass computes both
  // again, with zeros in the place of the elements of Q and dO that are not finite. A visible one
  // of Q has made P NaN; what a visible one of dO contributes to dV is added here.
  __device__ void zero_non_finite_queries(std::int32_t q_tile, int stage) {
    for (int i = threadIdx.x; i < kConfig.q_tile; i += kThreads) shared_.non_finite_query[i] = 0;
    __syncthreads();
    NonFinite::template zero<kConfig.q_tile>(shared_.dout[stage], shared_.non_finite_query);
    __syncthreads();
#pragma unroll 1
    for (int row = 0; row < kConfig.q_tile; ++row) {
      if (shared_.non_finite_query[row] == 0) continue;
      NonFinite::template add_row<KeyGradient, kConfig.k_tile>(shared_.probs, row, tile_.dout,
                                                               q_tile * kConfig.q_tile + row, dv_);
    }
    NonFinite::template zero<kConfig.q_tile>(shared_.q[stage], shared_.non_finite_query);
    __syncthreads();
  }

  __device__ __forceinline__ bool has_non_finite() const {
    float total = 0;  // 0 * x is NaN for what is not finite, and stays in the sum
#pragma unroll
    for (int row_block = 0; row_block < KeyGradient::kRowBlocks; ++row_block) {
#pragma unroll
      for (int r = 0; r < KeyGradient::kCount; ++r)
        total += 0 * dk_[row_block][r] + 0 * dv_[row_block][r];
    }
    return !(total == 0);
  }

  // Whether Q or dO may hide a value that is not finite (hidden_values.cuh). All threads.
  __device__ __forceinline__ bool hides_non_finite() {
    const Problem& problem = parameters_.problem;
    if (contains_non_finite_) return true;
    if constexpr (kConfig.score_mod) {
      if (problem.mask.present() || problem.bias.present() || problem.dropout_p > 0) return true;
    }
    const int thread = static_cast<int>(ptx::opaque(threadIdx.x));
    bool found = false;
    for_each_query_tile(
        problem, tile_, mask_, [&](std::int32_t head) { this->begin_head(head); },
        [&](std::int32_t q_tile, bool full) {
          const tile::Range own = {q_tile * kConfig.q_tile, (q_tile + 1) * kConfig.q_tile};
          found |= hold_non_finite<kConfig.fp16>(tile_.q, own, thread, kThreads, full);
          if (!full) found |= hold_non_finite<kConfig.fp16>(tile_.dout, own, thread, kThreads);
        });
    return __syncthreads_or(found);
  }

  // ---- the end of the block ----

  __device__ __forceinline__ void store() const {
    const Problem& problem = parameters_.problem;
    if (problem.dk.present()) {
      store_fragments<KeyGradient, kConfig.fp16>(
          key_destination(parameters_, tile_, kConfig.k_tile, problem.dk, problem.head_dim,
                          problem.scale),
          dk_);
    }
    if (problem.dv.present()) {
      store_fragments<KeyGradient, kConfig.fp16>(
          key_destination(parameters_, tile_, kConfig.k_tile, problem.dv, problem.value_dim, 1),
          dv_);
    }
  }

  bool non_finite_pass_ = false;
  Offsets gradient_offsets_, query_offsets_;
  typename KeyGradient::Fragments dk_, dv_;
};

template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kKernels[kRow].config(kFp16).threads(),
                                  kKernels[kRow].config(kFp16).blocks)
    backward_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config(kFp16);
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(dynamic_shared());
  if (!begin_key_tile(parameters, kConfig.k_tile, shared.tile)) return;
  Backward<kConfig>(parameters, shared).run();
}

template <int kRow, bool kFp16>
inline constexpr int kSharedBytes = sizeof(Shared<kKernels[kRow].config(kFp16)>);

template <int kRow, bool kFp16>
cudaError_t BackwardKernel<kRow, kFp16>::load() {
  static_assert(kSharedBytes<kRow, kFp16> <= kKernels[kRow].shared_bytes,
                "A row of the table fits the shared memory that it is for.");
  const cudaError_t error = cuda::load(backward_kernel<kRow, kFp16>, kSharedBytes<kRow, kFp16>);
  if (error != cudaSuccess) return error;
  if constexpr (kKernels[kRow].score_mod) {
    const cudaError_t bias =
        cuda::load(bias_gradient_kernel<kRow, kFp16>, kSharedBytes<kRow, kFp16>);
    if (bias != cudaSuccess) return bias;
  }
  return cuda::load(dq_kernel<kRow, kFp16>);
}

template <int kRow, bool kFp16>
cudaError_t BackwardKernel<kRow, kFp16>::start(const Parameters& parameters, std::int64_t blocks,
                                               cudaStream_t stream) {
  constexpr int kThreads = kKernels[kRow].config(kFp16).threads();
  return launch(backward_kernel<kRow, kFp16>, {blocks, kThreads, kSharedBytes<kRow, kFp16>}, stream,
                parameters);
}

template <int kRow, bool kFp16>
cudaError_t BackwardKernel<kRow, kFp16>::start_dq(const Parameters& parameters, std::int64_t blocks,
                                                  cudaStream_t stream) {
  constexpr int kThreads = kKernels[kRow].config(kFp16).threads();
  return launch(dq_kernel<kRow, kFp16>, {blocks, kThreads}, stream, parameters);
}

template <int kRow, bool kFp16>
cudaError_t BackwardKernel<kRow, kFp16>::start_dbias(const Parameters& parameters,
                                                     std::int64_t blocks, cudaStream_t stream) {
  if constexpr (kKernels[kRow].score_mod) {
    constexpr int kThreads = kKernels[kRow].config(kFp16).threads();
    return launch(bias_gradient_kernel<kRow, kFp16>, {blocks, kThreads, kSharedBytes<kRow, kFp16>},
                  stream, parameters);
  }
  return cudaErrorInvalidValue;
}

}  // namespace tilewise::cuda::backward::sm80
