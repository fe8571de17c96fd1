// What a consumer's rows see of a tile of keys: edges, and the score rule.
#pragma once

#include "cuda/forward/sm90/consumer.cuh"

namespace tilewise::cuda::sm90 {

template <KernelConfig kConfig>
__device__ __forceinline__ auto Consumer<kConfig>::find_key_limits() const -> KeyLimits {
  KeyLimits limits;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) {
    const std::int32_t row = own_row() + tile::lane_row(lane, which);
    limits.begin[which] = tile_->edges.begin(row) - tile::lane_column(lane);
    limits.end[which] = tile_->edges.end(row) - tile::lane_column(lane);
  }
  return limits;
}

// The mask rule (math/mask_rule.h) as bits (tile/bands.h), while the tensor cores work. Where cut
// tiles come behind a full one, the limits have been found beside its exponentials. Cut tiles and
// rows of others are both rare, and one branch.
template <KernelConfig kConfig>
template <bool kFirst, bool kValues>
__device__ __forceinline__ auto Consumer<kConfig>::mask_of_tile() const -> MaskBits {
  const bool begins = key_ < full_begin_;
  const bool ends = key_ >= full_end_;
  const bool all = !begins && !ends;
  MaskBits mask = {all && key_ < unseen_, all, {~0u, ~0u}};
  const bool others = kValues && has_foreign_rows();
  if (static_cast<int>(all) & static_cast<int>(!others)) return mask;  // && is two branches
  const KeyLimits limits = kConfig.starts_full() && !kFirst ? key_limits_ : find_key_limits();
  const auto low_bits = [&](std::int32_t limit) {
    return tile::low_bits(tile::columns_before(limit - key_ * kConfig.k_tile, 0));
  };
  if (ends) {
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      mask.bits[which] = low_bits(limits.end[which]);
  }
  if (begins) {
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      mask.bits[which] &= ~low_bits(limits.begin[which]);
  }
  if (others) wait_v();
  return mask;
}

// The score rule leaves no registers for what was found before it.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::apply_rules(const MaskBits& mask,
                                                               float (&scores)[kScores]) {
  if constexpr (kConfig.score_mod) {
    // Beside 192 columns of Q there are no registers for all at once.
    constexpr int kTogether = kConfig.head_dim == 192 ? 16 : kScores;
    tile::scale_products<tile::Softcap, kTogether>(parameters_.scaling, scores);
    const int lane = threadIdx.x % 32;
    const std::int32_t distance = static_cast<std::int32_t>(own_row()) + tile_->diagonal -
                                  key_ * kConfig.k_tile + tile::lane_row(lane, 0) -
                                  tile::lane_column(lane);
    tile::add_alibi<tile::FragmentLayout>(tile_->slope, distance, scores);
    apply_mask_bits(mask_of_tile<true>(), scores);
  } else {
    apply_mask_bits(mask, scores);
  }
}

}  // namespace tilewise::cuda::sm90
