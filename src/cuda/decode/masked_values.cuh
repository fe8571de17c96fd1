// V of masked keys must not reach out, even where it is NaN: 0 * NaN is NaN. The non-finite
// elements of V are taken out of the product of a tile with masked keys, and added to the rows that
// see them.
#pragma once

#include "cuda/ptx/arithmetic.cuh"
#include "cuda/sm80/non_finite.cuh"
#include "cuda/tile/mask_bits.h"

namespace tilewise::cuda::decode {

// Adds what the non-finite elements of 16 keys and 16 columns of V contribute to out (8).
template <bool kFp16>
__device__ __forceinline__ void add_non_finite(const std::uint32_t (&visible)[tile::kRowsPerLane],
                                               int step, const std::uint32_t (&b)[4], float* out) {
  std::uint32_t rows[4];
  tile::mark_visible(visible[0], visible[1], step, rows);
  std::uint32_t markers[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) markers[i] = tile::markers_of<kFp16, false>(b[i]);
  sm80::add_marker_products(rows, markers, out);
#pragma unroll
  for (int i = 0; i < 4; ++i) markers[i] = tile::markers_of<kFp16, true>(b[i]);
  sm80::add_marker_products(rows, markers, out);
}

// 0 * x is NaN where x is not finite, and stays in the sum.
template <bool kFp16>
__device__ __forceinline__ bool has_non_finite(const std::uint32_t (&b)[4]) {
  constexpr std::uint32_t kMagnitudes = 0x7FFF7FFFu;
  std::uint32_t sum = 0;
#pragma unroll
  for (const std::uint32_t pair : b) sum = ptx::fma_x2<kFp16>(pair, 0, sum);
  return (sum & kMagnitudes) != 0;
}
template <bool kFp16>
__device__ __forceinline__ void zero_non_finite(std::uint32_t (&b)[4]) {
  uint4 chunk = make_uint4(b[0], b[1], b[2], b[3]);
  tile::zero_non_finite<kFp16>(chunk);
  b[0] = chunk.x;
  b[1] = chunk.y;
  b[2] = chunk.z;
  b[3] = chunk.w;
}

// The keys that one of the lane's rows sees. A key with a score of -infinity is masked.
template <int kScores>
__device__ __forceinline__ std::uint32_t visible_keys(const float (&scores)[kScores], int which) {
  std::uint32_t bits = 0;
#pragma unroll
  for (int r = 0; r < kScores; ++r) {
    if (tile::register_row(r) == which && scores[r] != -math::Limits<float>::kInfinity)
      bits |= 1u << tile::FragmentLayout::bit(r);
  }
  return bits;
}

}  // namespace tilewise::cuda::decode
