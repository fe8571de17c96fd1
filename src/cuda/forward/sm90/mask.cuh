// The mask of a consumer's rows on a key tile: the causal mask and the window as bits, and the
// score mod.
#pragma once

#include "cuda/forward/sm90/consumer.cuh"
#include "cuda/mask/visit_bands.cuh"
#include "cuda/tile/score_mod.cuh"
#include "cuda/tile/slow_path.cuh"

namespace tilewise::cuda::sm90 {

// The first row of this warp, within the sequence.
template <KernelConfig kConfig>
__device__ __forceinline__ std::int32_t Consumer<kConfig>::warp_row() const {
  return tile_->row + warpgroup_ * tile::kRows + threadIdx.x % 128 / 32 * tile::kWarpRows;
}

template <KernelConfig kConfig>
__device__ __forceinline__ auto Consumer<kConfig>::find_key_limits() const -> KeyLimits {
  KeyLimits limits;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) {
    const std::int32_t row = warp_row() + tile::lane_row(lane, which);
    limits.begin[which] = tile_->band.begin(row) - tile::lane_column(lane);
    limits.end[which] = tile_->band.end(row) - tile::lane_column(lane);
  }
  return limits;
}

// The mask rule (math/mask_rule.h) as bits (tile/mask_bits.h), while the tensor cores work. kFirst:
// of the first key tile of a query tile; for those that follow a full one, the limits have been
// found during its exponentials. kWaitsForV: rows of V that belong to another sequence become zero,
// too. Cut tiles and foreign rows are both rare, and one branch.
template <KernelConfig kConfig>
template <bool kFirst, bool kWaitsForV>
__device__ __forceinline__ auto Consumer<kConfig>::mask_of_tile() const -> MaskBits {
  if constexpr (kConfig.block_mask) {
    const bool full = bits_ == tile::kFullTile;
    MaskBits listed = {full && !lacks_keys_, full, {~0u, ~0u}};
    const bool foreign_rows = kWaitsForV && has_foreign_rows();
    if (static_cast<int>(full) & static_cast<int>(!foreign_rows)) return listed;
    if (!full) listed_bits(listed.bits);
    if (foreign_rows) wait_v();
    return listed;
  }
  const bool begins = key_ < full_begin_;
  const bool ends = key_ >= full_end_;
  const bool all = !begins && !ends;
  MaskBits mask = {all && key_ < first_key_from_, all, {~0u, ~0u}};
  const bool foreign = kWaitsForV && has_foreign_rows();
  if (static_cast<int>(all) & static_cast<int>(!foreign)) return mask;  // && is two branches
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
  if (foreign) wait_v();
  return mask;
}

// The bits of the lane's rows in a partial key tile of a list. What they are found by is computed
// again each time: the loops have no registers for it.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::listed_bits(
    std::uint32_t (&bits)[tile::kRowsPerLane]) const {
  const tile::BlockMask& mask = parameters_.block_mask;
  const std::int32_t thread = static_cast<std::int32_t>(ptx::opaque(threadIdx.x)) - 128;
  const std::int32_t lane = thread % 32;
  const std::int32_t row = thread / 32 * tile::kWarpRows + tile::lane_row(lane, 0);
  if (bits_ >= 0) {
    const std::uint32_t* const own =
        mask.bits + (std::int64_t{bits_} * kConfig.q_tile + row) * tile::kLanesPerRow +
        lane % tile::kLanesPerRow;
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      bits[which] = own[tile::lane_row(0, which) * tile::kLanesPerRow];
    return;
  }
#pragma unroll
  for (std::uint32_t& own : bits) own = 0;
  if (bits_ == tile::kHiddenTile) return;
  if (lane == 0) tile::count_slow_path(tile::SlowPath::kSearchedBands);
  const std::int32_t first = tile_->row + row;
  const tile::FragmentColumns columns = {key_ * kConfig.k_tile, tile::lane_column(lane)};
  mask::visit_bands(mask.bands, static_cast<std::int32_t>(parameters_.problem.slices.count),
                    tile_->head, tile_->band.key_end, {first, first + tile::lane_row(0, 1) + 1},
                    columns.range(), [&](const tile::Band& band) {
#pragma unroll
                      for (int which = 0; which < tile::kRowsPerLane; ++which)
                        bits[which] |=
                            tile::visible_bits(band, first + tile::lane_row(0, which), columns);
                    });
}

// After the first maxima: rows that have none yet are looked for in each step (apply_lazy_mask()).
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::look_for_rows_without_key(
    const tile::RowStates& states) {
  if constexpr (kConfig.block_mask && kConfig.lazy_max) lacks_keys_ = tile::any_without_key(states);
}

// mask_of_tile() where there are registers for the bits before the scores have arrived.
template <KernelConfig kConfig>
template <bool kFirst>
__device__ __forceinline__ auto Consumer<kConfig>::early_mask() const -> MaskBits {
  return kConfig.score_mod ? MaskBits{} : mask_of_tile<kFirst>();
}

// Masked scores become -inf. NOTE: at D 256, row by row costs a register more than there are.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::apply_mask(const MaskBits& mask,
                                                              float (&scores)[kScores],
                                                              bool always) {
  if (always || !mask.all)
    tile::apply_mask_bits<tile::FragmentLayout, kOut <= 64>(scores, mask.bits);
}

// Of a lazy-max step, in its rare branch; rows that see their first key take their maximum. The
// mask is applied without a test of its own but at D 64 (S 1024 causal: 0.988).
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::apply_lazy_mask(const MaskBits& mask,
                                                                   Fragments& f) {
  apply_mask(mask, f.scores, kConfig.starts_full());
  if (tile::any_without_key(f.states))
    tile::init_max_without_key(tile::row_max_of(f.scores), f.states);
  look_for_rows_without_key(f.states);
}

template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::apply_score_mod_and_mask(
    const MaskBits& mask, float (&scores)[kScores]) const {
  if constexpr (kConfig.score_mod) {
    // D 192 and fp8 leave no registers for all scores at once.
    constexpr int kAtOnce = kConfig.head_dim == 192 || kConfig.fp8 ? 16 : kScores;
    tile::scale_products<tile::Softcap, kAtOnce>(parameters_.scaling, scores);
    const int lane = threadIdx.x % 32;
    const std::int32_t distance = static_cast<std::int32_t>(warp_row()) + tile_->diagonal -
                                  key_ * kConfig.k_tile + tile::lane_row(lane, 0) -
                                  tile::lane_column(lane);
    tile::add_alibi<tile::FragmentLayout>(tile_->slope, distance, scores);
    apply_mask(mask_of_tile<true>(), scores);
  } else {
    apply_mask(mask, scores);
  }
}

}  // namespace tilewise::cuda::sm90
