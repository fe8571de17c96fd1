// dBias in fp32: the sums of a tile of the bias in registers.
#pragma once

#include "cuda/backward/bias_gradient.cuh"
#include "cuda/backward/fp32/kernel.h"
#include "cuda/backward/fp32/score_gradient.cuh"
#include "cuda/host/launch.cuh"

namespace tilewise::cuda::backward::fp32 {

template <KernelConfig kConfig>
class TileSums : public ScoreGradient<kConfig, true> {
 public:
  using Base = ScoreGradient<kConfig, true>;
  using Base::kScores;
  static constexpr int kSumStride = kConfig.score_row();

  using Base::Base;

 protected:
  __device__ __forceinline__ void fetch_queries(std::int32_t q_tile) const {
    this->fetch_q(q_tile);
    this->fetch_dout(q_tile);
  }

  __device__ __forceinline__ void add_tile(std::int32_t q_tile, tile::TileClass tile_class) {
    float probs[kScores], gradients[kScores];
    this->multiply_qk(probs);
    const std::uint32_t kept = this->probs(q_tile, tile_class, probs);
    this->multiply_dov(gradients);
    this->gradients(probs, kept, gradients);
#pragma unroll
    for (int r = 0; r < kScores; ++r) sums_[r] += gradients[r];
  }

  // The columns of the sums are the rows of the tile of keys: they become keys.
  __device__ __forceinline__ const float* store_sums() const {
    const int thread = static_cast<int>(threadIdx.x);
    float* const tile = this->shared_.scores;
#pragma unroll
    for (int r = 0; r < kScores; ++r) {
      const int row = Base::Scores::row(thread, Base::Layout::row(r));
      const int key = Base::Scores::across(thread) * Base::kKeys + Base::Layout::column(r);
      tile[row * kSumStride + key] = sums_[r];
    }
    return tile;
  }

 private:
  float sums_[kScores] = {};
};

template <int kRow>
__global__ void __launch_bounds__(kKernels[kRow].config().threads(), kKernels[kRow].config().blocks)
    bias_gradient_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config();
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(dynamic_shared());
  BiasGradient<TileSums<kConfig>>(parameters, shared)
      .run(bias_tile_of(parameters.problem, std::int64_t{blockIdx.x}, kConfig.q_tile,
                        kConfig.k_tile));
}

}  // namespace tilewise::cuda::backward::fp32
