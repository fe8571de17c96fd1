// The fp32 backward kernel: FlashAttention-2 (arXiv 2307.08691), Algorithm 2, with multiply-adds. A
// block owns one tile of keys and visits the queries that see it, of all query heads of the group.
#pragma once

#include "cuda/backward/block_turns.cuh"
#include "cuda/backward/fp32/bias_gradient.cuh"
#include "cuda/backward/fp32/kernel.h"
#include "cuda/backward/fp32/query_gradient.cuh"
#include "cuda/backward/fp32/score_gradient.cuh"
#include "cuda/backward/fp32/store.cuh"
#include "cuda/backward/hidden_values.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/ptx/reduction.cuh"
#include "cuda/tile/slow_path.cuh"

namespace tilewise::cuda::backward::fp32 {

template <KernelConfig kConfig>
class Backward : public ScoreGradient<kConfig> {
 public:
  using Base = ScoreGradient<kConfig>;
  using Base::kKTile;
  using Base::kQTile;
  using Base::kRow;
  using Base::kScores;
  using Base::kThreads;
  using Gradient = KeyGradient<kConfig>;
  using Turns = BlockTurns<kQTile, kKTile>;
  static constexpr int kScoreRow = kConfig.score_row();

  using Base::Base;

  __device__ __forceinline__ void run() {
    load_keys();
    do {
      visit_group();
    } while (needs_non_finite_pass());
    store();
  }

 private:
  using Base::contains_non_finite_;
  using Base::mask_;
  using Base::parameters_;
  using Base::shared_;
  using Base::tile_;

  // Loads K and V. Elements of K that are not finite become zero, and their keys are flagged.
  __device__ __forceinline__ void load_keys() {
    this->fetch_keys();
    if (threadIdx.x == 0) shared_.pending_turn = -1;
    for (int i = threadIdx.x; i < kKTile; i += kThreads) shared_.non_finite_key[i] = 0;
    ptx::cp_async_wait<0>();
    __syncthreads();
    bool found = false;
    cuda::fp32::zero_non_finite<Base::kKeyShape>(shared_.k, [&](int row) {
      shared_.non_finite_key[row] = 1;
      found = true;
    });
    contains_non_finite_ = __syncthreads_or(found);
  }

  // Computes dK and dV, and adds to dQ unless this is the non-finite pass, which comes second.
  __device__ __forceinline__ void visit_group() {
    for (auto* const gradient : {&dk_, &dv_}) {
#pragma unroll
      for (auto& row : *gradient) {
#pragma unroll
        for (float& x : row) x = 0;
      }
    }
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

  // The copies of a tile begin as soon as no warp reads the tile before it any more: those of dO
  // during dK and dQ, those of Q during dQ.
  __device__ __forceinline__ void visit_queries() {
    const Turns turns = {parameters_, tile_, mask_, shared_.pending_turn, takes_turns()};
    std::int32_t q_tile = mask_.first_tile();
    if (q_tile >= 0) {
      this->fetch_dout(q_tile);
      this->fetch_q(q_tile);
    }
    while (q_tile >= 0) {
      const std::int32_t next = mask_.next_tile(q_tile);
      ptx::cp_async_wait<0>();
      __syncthreads();
      turns.begin(q_tile);
      step(q_tile, next, turns);
      q_tile = next;
    }
    __syncthreads();
    turns.end_all();
  }

  // Whether this pass adds to dQ.
  __device__ __forceinline__ bool adds_to_dq() const {
    return parameters_.dq_sums != nullptr && !non_finite_pass_;
  }
  __device__ __forceinline__ bool takes_turns() const {
    return parameters_.turns != nullptr && !non_finite_pass_;
  }

  // A tile of queries: Algorithm 2, lines 10 to 16.
  __device__ __forceinline__ void step(std::int32_t q_tile, std::int32_t next, const Turns& turns) {
    float probs[kScores], gradients[kScores];
    this->multiply_qk(probs);  // S = Q K^T
    const tile::TileClass tile_class = mask_.tile_class(q_tile);
    const std::uint32_t kept = this->probs(q_tile, tile_class, probs);  // P = exp(S - LSE)
    this->multiply_dov(gradients);                                      // dP = dO V^T
    this->gradients(probs, kept, gradients);                            // dS = P (dP - delta)

    __syncthreads();  // P is there
    if (non_finite_pass_) separate_non_finite_dout();
    add_gradient(shared_.dout, dv_);  // dV += P^T dO
    __syncthreads();                  // no warp reads P or dO any more

    this->store_scores(gradients);
    if (next >= 0) this->fetch_dout(next);
    __syncthreads();  // dS is there
    if (non_finite_pass_) zero_queries(shared_.q);
    add_gradient(shared_.q, dk_);  // dK += dS^T Q
    __syncthreads();               // no warp reads Q any more

    if (next >= 0) this->fetch_q(next);
    if (!adds_to_dq()) return;
    turns.wait(q_tile);
    add_dq(q_tile);  // dQ += dS K
  }

  using Gradients = float[Gradient::kRows][Gradient::kColumns];

  __device__ __forceinline__ void add_gradient(const float* rows, Gradients& to) const {
    // With more sums at a time there would be no registers for the loads.
    constexpr int kSumRuns =
        Gradient::kColumnRuns > 1 && Gradient::kRows > 4 ? 1 : Gradient::kColumnRuns;
    add_transposed<Gradient, kScoreRow, kRow, kQTile, kSumRuns>(shared_.scores, rows, to);
  }

  __device__ __forceinline__ void add_dq(std::int32_t q_tile) const {
    using Part = QueryGradient<kConfig>;
#pragma unroll 1
    for (int part = 0; part < kQueryParts<kConfig>; ++part) {
      float dq[Part::kRows][Part::kColumns];
      multiply<Part, kScoreRow, kRow, kKTile>(
          shared_.scores, shared_.k + part * (kConfig.columns / kQueryParts<kConfig>), dq);
      float* const sums = own_dq_sums<kConfig>(parameters_, tile_.first_query_tile + q_tile, part);
#pragma unroll
      for (int i = 0; i < Part::kRows * Part::kColumns; ++i)
        ptx::red_add(sums + 32 * i, dq[i / Part::kColumns][i % Part::kColumns]);
    }
  }

  // ---- non-finite values ----

  // A masked pair has P = 0 and dS = 0, but 0 * NaN is NaN. Non-finite elements of K are zero from
  // the start. If dK or dV ends with a non-finite value, and Q or dO hides one, a second pass
  // computes both again, with zeros in the place of the non-finite elements of Q and dO. A visible
  // one of Q has made P NaN; the contribution of a visible one of dO to dV is added here.
  __device__ __forceinline__ void separate_non_finite_dout() {
    const int thread = static_cast<int>(ptx::opaque(threadIdx.x));
#pragma unroll 1
    for (int row = 0; row < kQTile; ++row) {
      const float* const probs = shared_.scores + row * kScoreRow;
      const float* const values = shared_.dout + row * kRow;
#pragma unroll
      for (int c = 0; c < Gradient::kColumns; ++c) {
        const float value = values[Gradient::column_run(thread, c / kVector) + c % kVector];
        if (!tile::is_non_finite(value)) continue;
#pragma unroll
        for (int i = 0; i < Gradient::kRows; ++i) {
          const float prob = probs[Gradient::row_run(thread, i / kVector) + i % kVector];
          if (prob != 0) dv_[i][c] += prob * value;
        }
      }
    }
    __syncthreads();  // no warp reads dO any more
    zero_queries(shared_.dout);
  }

  __device__ __forceinline__ static void zero_queries(float* rows) {
    cuda::fp32::zero_non_finite<Base::kQueryShape>(rows, [](int) {});
    __syncthreads();
  }

  // After a pass: whether the non-finite pass follows. All threads.
  __device__ __forceinline__ bool needs_non_finite_pass() {
    if (non_finite_pass_ || !__syncthreads_or(has_non_finite()) || !hides_non_finite())
      return false;
    if (threadIdx.x == 0) tile::count_slow_path(tile::SlowPath::kNonFinitePass);
    non_finite_pass_ = contains_non_finite_ = true;
    return true;
  }

  __device__ __forceinline__ bool has_non_finite() const {
    float total = 0;  // 0 * x is NaN for what is not finite, and stays in the sum
#pragma unroll
    for (int i = 0; i < Gradient::kRows; ++i) {
#pragma unroll
      for (int c = 0; c < Gradient::kColumns; ++c) total += 0 * dk_[i][c] + 0 * dv_[i][c];
    }
    return !(total == 0);
  }

  // Whether Q or dO may hide a value that is not finite (hidden_values.cuh). All threads.
  __device__ __forceinline__ bool hides_non_finite() {
    const Problem& problem = parameters_.problem;
    if (contains_non_finite_ || problem.mask.present() || problem.bias.present() ||
        problem.dropout_p > 0)
      return true;
    const int thread = static_cast<int>(ptx::opaque(threadIdx.x));
    bool found = false;
    for_each_query_tile(
        problem, tile_, mask_, [&](std::int32_t head) { this->begin_head(head); },
        [&](std::int32_t q_tile, bool full) {
          const tile::Range own = {q_tile * kQTile, (q_tile + 1) * kQTile};
          found |= hold_non_finite(tile_.q, own, thread, kThreads, full);
          if (!full) found |= hold_non_finite(tile_.dout, own, thread, kThreads);
        });
    return __syncthreads_or(found);
  }

  // ---- the end of the block ----

  __device__ __forceinline__ void store() const {
    const Problem& problem = parameters_.problem;
    if (problem.dk.present()) {
      store_rows(
          key_destination(parameters_, tile_, kKTile, problem.dk, problem.head_dim, problem.scale),
          dk_);
    }
    if (problem.dv.present()) {
      store_rows(key_destination(parameters_, tile_, kKTile, problem.dv, problem.value_dim, 1),
                 dv_);
    }
  }

  __device__ __forceinline__ static void store_rows(const Destination& to, const Gradients& rows) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < Gradient::kRows; ++i) {
      const int row = Gradient::row_run(thread, i / kVector) + i % kVector;
#pragma unroll
      for (int m = 0; m < Gradient::kColumnRuns; ++m) {
        store_run(to, cuda::fp32::key_at(row, Base::kKeys), Gradient::column_run(thread, m),
                  &rows[i][m * kVector]);
      }
    }
  }

  bool non_finite_pass_ = false;
  Gradients dk_, dv_;
};

template <int kRow>
__global__ void __launch_bounds__(kKernels[kRow].config().threads(), kKernels[kRow].config().blocks)
    backward_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config();
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(dynamic_shared());
  if (!begin_key_tile(parameters, kConfig.k_tile, shared.tile)) return;
  Backward<kConfig>(parameters, shared).run();
}

template <int kRow>
inline constexpr int kSharedBytes = sizeof(Shared<kKernels[kRow].config()>);

template <int kRow>
cudaError_t BackwardKernel<kRow>::load() {
  static_assert(kSharedBytes<kRow> <= kKernels[kRow].shared_bytes,
                "A row of the table fits the shared memory that it is for.");
  cudaError_t error = cuda::load(backward_kernel<kRow>, kSharedBytes<kRow>);
  if (error == cudaSuccess) error = cuda::load(bias_gradient_kernel<kRow>, kSharedBytes<kRow>);
  return error == cudaSuccess ? cuda::load(dq_kernel<kRow>) : error;
}

template <int kRow>
cudaError_t BackwardKernel<kRow>::start(const Parameters& parameters, std::int64_t blocks,
                                        cudaStream_t stream) {
  constexpr int kThreads = kKernels[kRow].config().threads();
  return launch(backward_kernel<kRow>, {blocks, kThreads, kSharedBytes<kRow>}, stream, parameters);
}

template <int kRow>
cudaError_t BackwardKernel<kRow>::start_dq(const Parameters& parameters, std::int64_t blocks,
                                           cudaStream_t stream) {
  return launch(dq_kernel<kRow>, {blocks, kKernels[kRow].config().threads()}, stream, parameters);
}

template <int kRow>
cudaError_t BackwardKernel<kRow>::start_dbias(const Parameters& parameters, std::int64_t blocks,
                                              cudaStream_t stream) {
  constexpr int kThreads = kKernels[kRow].config().threads();
  return launch(bias_gradient_kernel<kRow>, {blocks, kThreads, kSharedBytes<kRow>}, stream,
                parameters);
}

}  // namespace tilewise::cuda::backward::fp32
