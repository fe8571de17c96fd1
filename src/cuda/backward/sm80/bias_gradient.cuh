// dBias for Ampere and later: the sums of a tile of the bias in fragments.
#pragma once

#include "cuda/backward/bias_gradient.cuh"
#include "cuda/backward/sm80/kernel.h"
#include "cuda/backward/sm80/score_gradient.cuh"
#include "cuda/host/launch.cuh"

namespace tilewise::cuda::backward::sm80 {

template <KernelConfig kConfig>
class TileSums : public ScoreGradient<kConfig, true> {
 public:
  using Base = ScoreGradient<kConfig, true>;
  using Scores = typename Base::Scores;
  static constexpr int kQTile = kConfig.q_tile;
  static constexpr int kKTile = kConfig.k_tile;
  static constexpr int kSumStride = kConfig.k_tile;
  static_assert(kConfig.score_mod, "A bias is a score mod.");
  static_assert(2 * kConfig.score_bytes() == kConfig.q_tile * kConfig.k_tile * 4,
                "P and dS leave room for the sums of the tile.");

  __device__ __forceinline__ TileSums(const Parameters& parameters, Shared<kConfig>& shared)
      : Base(parameters, shared) {
    Scores::clear(sums_);
  }

 protected:
  __device__ __forceinline__ void fetch_queries(std::int32_t q_tile) const {
    Base::fetch_queries(q_tile, 0);
  }

  __device__ __forceinline__ void add_tile(std::int32_t q_tile, tile::TileClass tile_class) {
    typename Base::ScoreFactors factors;
    typename Scores::Fragments probs, gradients;
    this->multiply_qk(0, probs);
    this->multiply_dov(0, gradients);
    this->probs(q_tile, 0, tile_class, probs, factors);
    this->gradients(0, tile_class, probs, factors, gradients);
#pragma unroll
    for (int row_block = 0; row_block < Scores::kRowBlocks; ++row_block) {
#pragma unroll
      for (int r = 0; r < Scores::kCount; ++r) sums_[row_block][r] += gradients[row_block][r];
    }
  }

  __device__ __forceinline__ const float* store_sums() const {
    float* const tile = reinterpret_cast<float*>(this->shared_.probs);  // (q_tile, k_tile)
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int row_block = 0; row_block < Scores::kRowBlocks; ++row_block) {
#pragma unroll
      for (int r = 0; r < Scores::kCount; ++r) {
        const int row =
            Scores::row() + 16 * row_block + tile::lane_row(lane, tile::register_row(r));
        const int column = Scores::column() + tile::register_column(r) + tile::lane_column(lane);
        tile[row * kConfig.k_tile + column] = sums_[row_block][r];
      }
    }
    return tile;
  }

 private:
  typename Scores::Fragments sums_;
};

template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kKernels[kRow].config(kFp16).threads(),
                                  kKernels[kRow].config(kFp16).blocks)
    bias_gradient_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config(kFp16);
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(dynamic_shared());
  BiasGradient<TileSums<kConfig>>(parameters, shared)
      .run(bias_tile_of(parameters.problem, std::int64_t{blockIdx.x}, kConfig.q_tile,
                        kConfig.k_tile));
}

}  // namespace tilewise::cuda::backward::sm80
