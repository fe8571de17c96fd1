// Standard attention (arXiv 2205.14135, Algorithm 0) through global memory: this file stores
// S = Q K^T, softmax.cu computes P = softmax(S), and this file multiplies O = P V. A block computes
// a tile of queries over all keys, visible or not.
#pragma once

#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/ladder/kernel_table.h"
#include "cuda/ladder/parameters.h"
#include "cuda/sm80/epilogue.cuh"
#include "cuda/sm80/softmax_step.cuh"

namespace tilewise::cuda::ladder {

// S = Q K^T after score mods and mask. Masked scores are -inf.
template <KernelConfig kConfig>
class Scores : public sm80::SoftmaxStep<kConfig> {
 public:
  using Step = sm80::SoftmaxStep<kConfig>;
  static_assert(kConfig.stages == 2 && Step::kRowBlocks == 1,
                "The loop has two stages and one row block.");

  __device__ Scores(const Parameters& parameters, sm80::Shared<kConfig>& shared)
      : Step(parameters.tiles, shared), ladder_(parameters) {}

  __device__ __forceinline__ void run() {
    const std::int32_t keys = static_cast<std::int32_t>(tile_.sequence.k_len);
    if (keys == 0) return;
    sm80::load_tile<kConfig.q_tile(), kConfig.columns, kConfig.threads()>(tile_.q, tile_.first,
                                                                          shared_.q);
    this->load_k(0, 0);
    ptx::cp_async_commit();
    if (threadIdx.x < 32) mask_.build_by_warp();
    for (std::int32_t key_tile = 0; key_tile * kConfig.k_tile < keys; ++key_tile) {
      const int stage = key_tile % 2;
      ptx::cp_async_wait<0>();
      __syncthreads();
      if ((key_tile + 1) * kConfig.k_tile < keys) this->load_k(key_tile + 1, stage ^ 1);
      ptx::cp_async_commit();
      float scores[1][kScores];
      this->multiply_qk(stage, scores);
      if (ladder_.products != nullptr) store(key_tile, scores[0], ladder_.products);
      this->apply_score_mod_and_mask(key_tile, mask_.tile_class(shared_.mask.tiles, key_tile),
                                     scores);
      store(key_tile, scores[0], ladder_.scores);
    }
  }

 private:
  using Step::kScores;
  using Step::mask_;
  using Step::shared_;
  using Step::tile_;

  __device__ __forceinline__ void store(std::int32_t key_tile, const float (&scores)[kScores],
                                        float* to) {
    const int lane = threadIdx.x % 32;
    const std::int32_t row = sm80::lane_row<kConfig>(tile_, 0);
    float* const first =
        to + (ladder_.first_row(tile_.sequence, tile_.head) + row) * ladder_.score_stride +
        key_tile * kConfig.k_tile + tile::lane_column(lane);
#pragma unroll
    for (int r = 0; r < kScores; r += 2) {
      const std::int32_t down = 8 * tile::register_row(r);
      if (row + down > tile_.last) continue;
      *reinterpret_cast<float2*>(first + down * ladder_.score_stride + tile::register_column(r)) =
          make_float2(scores[r], scores[r + 1]);
    }
  }

  const Parameters& ladder_;
};

// O = P V. A tile of P is loaded into the shared memory of a tile of K.
template <KernelConfig kConfig>
class Values : public sm80::SoftmaxStep<kConfig> {
 public:
  using Step = sm80::SoftmaxStep<kConfig>;
  using ProbLayout = tile::LdmatrixTile<kConfig.k_tile>;
  static_assert(kConfig.stages == 2 && Step::kRowBlocks == 1,
                "The loop has two stages and one row block.");
  static_assert(kConfig.q_tile() == kConfig.columns, "A tile of P is as large as one of K.");

  __device__ Values(const Parameters& parameters, sm80::Shared<kConfig>& shared)
      : Step(parameters.tiles, shared), ladder_(parameters) {}

  __device__ __forceinline__ void run() {
    const std::int32_t keys = static_cast<std::int32_t>(tile_.sequence.k_len);
    this->clear();
    load(0);
    for (std::int32_t key_tile = 0; key_tile * kConfig.k_tile < keys; ++key_tile) {
      const int stage = key_tile % 2;
      ptx::cp_async_wait<0>();
      const bool non_finite = this->sync_and_find_non_finite(stage);
      if ((key_tile + 1) * kConfig.k_tile < keys) load(key_tile + 1);
      if (non_finite) separate_non_finite(key_tile, stage);
      multiply_pv(stage);
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
    const float scales[1][tile::kRowsPerLane] = {{1, 1}};  // rows are normalised already
    sm80::Epilogue<kConfig>(parameters_, shared_, out_, states_).store(scales);
  }

 private:
  using Step::kKeySteps;
  using Step::kScores;
  using Step::kSteps;
  using Step::out_;
  using Step::parameters_;
  using Step::shared_;
  using Step::states_;
  using Step::tile_;

  // Starts the copies of P and V of a tile of keys. Rows of P are whole tiles.
  __device__ __forceinline__ void load(std::int32_t key_tile) {
    if (tile_.sequence.k_len > 0) {
      const sm80::Rows probs = {
          ladder_.probs + ladder_.first_row(tile_.sequence, tile_.head) * ladder_.score_stride +
              key_tile * kConfig.k_tile,
          ladder_.score_stride, static_cast<std::int32_t>(tile_.sequence.q_len), kConfig.k_tile,
          true};
      sm80::load_tile<kConfig.q_tile(), kConfig.k_tile, kConfig.threads()>(probs, tile_.first,
                                                                           shared_.k[key_tile % 2]);
      this->load_v(key_tile, key_tile % 2);
    }
    ptx::cp_async_commit();
  }

  // Adds what the non-finite elements of V contribute to the rows that see them, and replaces them
  // by zero for the product.
  __device__ __forceinline__ void separate_non_finite(std::int32_t key_tile, int stage) {
    this->add_visible_non_finite(stage, visible_keys(key_tile));
    __syncthreads();
    this->zero_non_finite(stage);
  }

  // O += P V
  __device__ __forceinline__ void multiply_pv(int stage) {
    const int lane = threadIdx.x % 32;
    const auto values = this->v_operand(stage);
    const std::uint32_t probs =
        ptx::shared_address(shared_.k[stage]) + sm80::warp_row<kConfig>() * ProbLayout::kRowBytes +
        ProbLayout::place(tile::lane_row_first(lane), tile::lane_chunk_first(lane));
#pragma unroll 1
    for (int step = 0; step < kKeySteps; ++step) {
      std::uint32_t a[4];
      ptx::ldmatrix_x4(a, tile::step_address<kConfig.k_tile>(probs, step));
#pragma unroll
      for (int n = 0; n < kSteps; ++n) this->multiply_pv_step(values, step, n, a, 4);
    }
  }

  // The keys that the lane's rows see: S says which are masked, P has 0 for small probs, too.
  __device__ __forceinline__ sm80::VisibleKeys<kConfig> visible_keys(std::int32_t key_tile) const {
    const std::int32_t row = sm80::lane_row<kConfig>(tile_, 0);
    const float* const first =
        ladder_.scores +
        (ladder_.first_row(tile_.sequence, tile_.head) + row) * ladder_.score_stride +
        key_tile * kConfig.k_tile + tile::lane_column(threadIdx.x % 32);
    float scores[1][kScores];
#pragma unroll
    for (int r = 0; r < kScores; ++r) {
      const std::int32_t down = 8 * tile::register_row(r);
      scores[0][r] = row + down > tile_.last
                         ? -math::Limits<float>::kInfinity
                         : first[down * ladder_.score_stride + tile::register_column(r)];
    }
    return Step::visible_keys(scores);
  }

  const Parameters& ladder_;
};

// A block computes a tile of queries. The row and the type select the configuration.
template <KernelConfig kConfig, template <KernelConfig> class Product>
__device__ __forceinline__ void run_product(const Parameters& parameters) {
  auto& shared = *reinterpret_cast<sm80::Shared<kConfig>*>(dynamic_shared());
  const sm80::Parameters& tiles = parameters.tiles;
  const std::int32_t index = static_cast<std::int32_t>(blockIdx.x);
  if (tiles.problem.varlen_q() && index >= tiles.packed.count()) return;
  if (threadIdx.x == 0) sm80::load_work_tile(tiles, index, kConfig.q_tile(), shared.tile);
  __syncthreads();
  Product<kConfig>(parameters, shared).run();
}
template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kStandardKernels[kRow].config(kFp16).threads(),
                                  kStandardKernels[kRow].config(kFp16).blocks)
    scores_forward_kernel(const __grid_constant__ Parameters parameters) {
  run_product<kStandardKernels[kRow].config(kFp16), Scores>(parameters);
}
template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kStandardKernels[kRow].config(kFp16).threads(),
                                  kStandardKernels[kRow].config(kFp16).blocks)
    values_forward_kernel(const __grid_constant__ Parameters parameters) {
  run_product<kStandardKernels[kRow].config(kFp16), Values>(parameters);
}

template <int kRow, bool kFp16>
inline constexpr int kStandardBytes = sizeof(sm80::Shared<kStandardKernels[kRow].config(kFp16)>);

template <int kRow, bool kFp16>
cudaError_t StandardKernel<kRow, kFp16>::load() {
  constexpr int kBytes = kStandardBytes<kRow, kFp16>;
  static_assert(kBytes <= kStandardKernels[kRow].shared_bytes,
                "A row of the table fits the shared memory that it is for.");
  const cudaError_t error = cuda::load(scores_forward_kernel<kRow, kFp16>, kBytes);
  return error == cudaSuccess ? cuda::load(values_forward_kernel<kRow, kFp16>, kBytes) : error;
}

template <int kRow, bool kFp16>
cudaError_t StandardKernel<kRow, kFp16>::start_scores(const Parameters& parameters,
                                                      std::int64_t blocks, cudaStream_t stream) {
  constexpr int kThreads = kStandardKernels[kRow].config(kFp16).threads();
  return launch(scores_forward_kernel<kRow, kFp16>, {blocks, kThreads, kStandardBytes<kRow, kFp16>},
                stream, parameters);
}

template <int kRow, bool kFp16>
cudaError_t StandardKernel<kRow, kFp16>::start_values(const Parameters& parameters,
                                                      std::int64_t blocks, cudaStream_t stream) {
  constexpr int kThreads = kStandardKernels[kRow].config(kFp16).threads();
  return launch(values_forward_kernel<kRow, kFp16>, {blocks, kThreads, kStandardBytes<kRow, kFp16>},
                stream, parameters);
}

}  // namespace tilewise::cuda::ladder
