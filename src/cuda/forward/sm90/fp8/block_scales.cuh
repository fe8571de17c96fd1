// Scales of blocks of 128 rows. Scores are multiplied by those of Q and K before the maxima. O is
// in units of the scale of the values that came last: where the next values have another one, the
// factor that rescales O says so, too. Where a key tile lies in two blocks, which only packed
// sequences do, probs are multiplied by the ratio to the larger scale.
#pragma once

#include "cuda/forward/sm90/fp8/consumer.cuh"

namespace tilewise::cuda::sm90 {

// The lane's rows of the query tile; rows after the last are of no account.
template <KernelConfig kConfig>
__device__ __forceinline__ void Fp8Consumer<kConfig>::load_query_scales() {
  const problem::Problem& problem = parameters_.problem;
  const problem::View& view = problem.q_descale;
  const int lane = static_cast<int>(ptx::opaque(threadIdx.x)) % 32;
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) {
    const std::int32_t row =
        math::min(this->warp_row() + tile::lane_row(lane, which), tile_->q_len - 1);
    row_scales_[which] = 1;
    if (!view.present()) continue;
    const std::int64_t block = (std::int64_t{tile_->q_start} + row) / problem::kDescaleRows;
    row_scales_[which] *=
        static_cast<const float*>(view.data)[view.offset(tile_->batch, tile_->kv_head, block)];
  }
}

// Of the key tile key_.
template <KernelConfig kConfig>
__device__ __forceinline__ auto Fp8Consumer<kConfig>::scales_of(const problem::View& view) const
    -> BlockScales {
  const std::int64_t last = parameters_.problem.k_rows - 1;
  if (!view.present() || last < 0) return {1, 1, kConfig.k_tile};
  const std::int64_t row = std::int64_t{tile_->k_start} + key_ * kConfig.k_tile;
  const auto scale = [&](std::int64_t of) {
    const std::int64_t block = math::min(of, last) / problem::kDescaleRows;
    return static_cast<const float*>(view.data)[view.offset(tile_->batch, tile_->kv_head, block)];
  };
  static_assert(kConfig.k_tile == problem::kDescaleRows);
  return {scale(row), scale(row + kConfig.k_tile - 1),
          kConfig.k_tile - static_cast<std::int32_t>(row % kConfig.k_tile)};
}

// Before the scores arrive, so that nothing waits for it.
template <KernelConfig kConfig>
__device__ __forceinline__ void Fp8Consumer<kConfig>::load_key_scale() {
  if constexpr (kConfig.score_mod) {
    const BlockScales keys = scales_of(parameters_.problem.k_descale);
    key_scale_ = keys.first;
    key_ratio_ = keys.second / keys.first;
  }
}

// Multiplies what lies from a column on.
template <int kCount>
__device__ __forceinline__ void scale_from_column(std::int32_t column, float factor,
                                                  float (&numbers)[kCount]) {
  const std::int32_t own = column - tile::lane_column(static_cast<int>(threadIdx.x) % 32);
#pragma unroll
  for (int r = 0; r < kCount; ++r) numbers[r] *= tile::register_column(r) >= own ? factor : 1.0f;
}

template <KernelConfig kConfig>
__device__ __forceinline__ void Fp8Consumer<kConfig>::scale_scores(float (&scores)[kScores]) const {
  const float factor[] = {row_scales_[0] * key_scale_, row_scales_[1] * key_scale_};
  tile::scale_rows(scores, factor);
  const std::int32_t split = kConfig.k_tile - tile_->k_start % kConfig.k_tile;
  if (split < kConfig.k_tile) scale_from_column(split, key_ratio_, scores);
}

template <KernelConfig kConfig>
__device__ __forceinline__ auto Fp8Consumer<kConfig>::value_scales() const -> BlockScales {
  if constexpr (kConfig.score_mod) {
    return scales_of(parameters_.problem.v_descale);
  } else {
    return {};
  }
}

// Scales the probs of a tile, and changes the unit of O. Returns the old one in the new one.
template <KernelConfig kConfig>
__device__ __forceinline__ float Fp8Consumer<kConfig>::scale_probs(const BlockScales& values,
                                                                   float (&probs)[kScores]) {
  if constexpr (!kConfig.score_mod) return 1.0f;
  float unit = values.first;
  if (values.split < kConfig.k_tile) {
    unit = fmaxf(values.first, values.second);
    const float first = values.first / unit;
    scale_from_column(0, first, probs);
    scale_from_column(values.split, values.second / unit / first, probs);
  }
  const float factor = value_unit_ / unit;
  value_unit_ = unit;
  return factor;
}

}  // namespace tilewise::cuda::sm90
