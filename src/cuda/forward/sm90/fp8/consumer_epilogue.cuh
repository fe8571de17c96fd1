// The end of a query tile of fp8, and values that are not finite.
#pragma once

#include "cuda/forward/sm90/epilogue.cuh"
#include "cuda/forward/sm90/fp8/consumer.cuh"
#include "cuda/tile/slow_path.cuh"

namespace tilewise::cuda::sm90 {

// The configuration of an epilogue that stores out as fp16, or as bf16.
TILEWISE_INLINE constexpr KernelConfig with_out(KernelConfig config, bool fp16) {
  config.fp16 = fp16;
  return config;
}

// O is added to before its first product, too, with a factor of 0.
template <KernelConfig kConfig>
__device__ __forceinline__ void Fp8Consumer<kConfig>::clear_out(Fragments& f) {
#pragma unroll
  for (float& x : f.out) x = 0;
}

// Finalises the rows of the query tile before slot_, stores them and their lse, and clears O.
template <KernelConfig kConfig>
__device__ __forceinline__ void Fp8Consumer<kConfig>::end_query_tile(const tile::RowStates& states,
                                                                     Fragments& f) const {
  const WorkTile& tile = last_tile();
  const LaneOffsets offsets = this->lane_offsets();
  const int lane = threadIdx.x % 32;
  const std::int32_t rows = tile.q_len - tile.row - offsets.row;
  const TileScales factors = shared_.scales[(slot_ - 1) % kTileSlots];
  const float scale_log2 = factors.scores > 0 ? factors.scores : 1.0f;
  FinalisedRows finalised = {};
  math::Finalised<float> row[tile::kRowsPerLane];
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) {
    const math::SoftmaxState<float> state = {
        __fmaf_rn(states.row[which].max, scale_log2, -tile::kFp8ProbExponent),
        tile::quad_sum(states.row[which].sum)};
    row[which] = tile::finalise_approx(state, parameters_.ln2);
    if (tile.sink != -math::Limits<float>::kInfinity)
      row[which] = tile::finalise_approx(state, tile.sink, parameters_.ln2);
    finalised.scale[which] = row[which].scale * (kConfig.score_mod ? value_unit_ : factors.values);
  }
  __syncwarp();  // `states` may lie where rows of out are about to pass
  if (lane % tile::kLanesPerRow == 0 && tile.lse != nullptr) {
    char* const first = tile.lse + offsets.lse;
    if (tile::lane_row(lane, 0) < rows) ptx::st_global(first, row[0].lse);
    if (tile::lane_row(lane, 1) < rows) ptx::st_global(first + parameters_.lse_step, row[1].lse);
  }
  if (parameters_.problem.out.dtype == TILEWISE_FP16) {
    store_out<with_out(kConfig, true)>(parameters_, tile, offsets, f.out, finalised);
  } else {
    store_out<with_out(kConfig, false)>(parameters_, tile, offsets, f.out, finalised);
  }
  clear_out(f);
}

// Bytes of the left operand (pack_fp8_probs()): 1 for each key of a tile that the row sees, else 0.
template <KernelConfig kConfig>
__device__ __forceinline__ void Fp8Consumer<kConfig>::mark_visible(
    const WorkTile& tile, std::int32_t key, std::uint32_t (&bytes)[kScores / 4]) const {
  constexpr std::uint32_t kOne = 0x38;  // of e4m3
  const int lane = threadIdx.x % 32;
  const std::int32_t warp_row = tile.row + warpgroup_ * tile::kRows +
                                static_cast<std::int32_t>(threadIdx.x) % 128 / 32 * tile::kWarpRows;
  std::uint32_t bits[tile::kRowsPerLane];
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) {
    const std::int32_t row = warp_row + tile::lane_row(lane, which);
    const auto low_bits = [&](std::int32_t end) {
      return tile::low_bits(
          tile::columns_before(end - key * kConfig.k_tile, tile::lane_column(lane)));
    };
    bits[which] = low_bits(tile.band.end(row)) & ~low_bits(tile.band.begin(row));
  }
#pragma unroll
  for (int i = 0; i < kScores / 4; ++i) {
    // Bits of four columns become bits 0, 8, 16 and 24.
    const std::uint32_t four = bits[i % 2] >> i / 2 * 4 & 0xFu;
    bytes[i] = (four * 0x204081u & 0x01010101u) * kOne;
  }
}

// V^T had numbers that are not finite, which counted as 0, in a key tile that an edge cuts. Adds
// them to the rows that see them: stages of markers say where they are (transposer.cuh).
template <KernelConfig kConfig>
__device__ __forceinline__ void Fp8Consumer<kConfig>::add_non_finite(const WorkTile& tile,
                                                                     std::int32_t key, int markers,
                                                                     Fragments& f) {
  if (threadIdx.x == 128) tile::count_slow_path(tile::SlowPath::kNonFiniteTile);
  mark_visible(tile, key, f.probs);
#pragma unroll 1
  for (int i = 0; i < markers; ++i) {
    v_.wait();
    const float sum = (i == 0 ? 1.0f : -1.0f) * math::Limits<float>::kInfinity;
    const float added = kConfig.e5m2 ? sum : __uint_as_float(0x7fffffffu);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      issue_pv(part, f);
      accept_pv(f);
#pragma unroll
      for (int r = 0; r < kProduct; ++r)
        f.out[part * kProduct + r] += f.product[r] > 0 ? added : 0.0f;
    }
    v_.release();
  }
}

}  // namespace tilewise::cuda::sm90
