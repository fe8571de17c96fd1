// The two products of attention in fp32, of a warp and a tile of keys, by multiply-adds. The scores
// lie in registers as those of mma.m16n8k16 do (tile/fragment.h), so that masks and softmax are the
// same. A lane reads K and V four numbers at a time, at addresses that the eight lanes of a column
// share.
//
//   S: the lane's two rows of Q times two of each 8 keys
//   O: columns 4 t to 4 t + 3 of each 16 (t: lane % 4) of the lane's two rows. The lanes of a quad
//      exchange their probs. The product of 8 keys is summed on its own: one by one, probs far
//      below the sum would be lost, always in the same direction.
#pragma once

#include "cuda/decode/kernel_config.h"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/ldmatrix_tile.h"
#include "cuda/tile/mask_bits.h"

namespace tilewise::cuda::decode {

template <KernelConfig kConfig>
struct Fp32Gemm {
  using Layout = tile::LdmatrixTile<kConfig.row_bytes() / 2>;
  static_assert(Layout::kGroup == 8, "Chunk c of row r lies at chunk c ^ r % 8.");
  static constexpr int kScores = kConfig.keys / 2;
  static constexpr int kOut = kConfig.columns / 2;
  static constexpr int kTogether = 8;  // keys

  // scores = Q K^T. `queries`: the warp's first row of Q, a multiple of 8
  __device__ __forceinline__ static void multiply_qk(std::uint32_t queries, std::uint32_t keys,
                                                     float (&scores)[kScores]) {
    const int row = lane() / 4;
    const int key = tile::lane_column(lane());
    const std::uint32_t q = queries + row * Layout::kRowBytes;
    const std::uint32_t k = keys + key * Layout::kRowBytes;
#pragma unroll
    for (float& x : scores) x = 0;
#pragma unroll 4
    for (int chunk = 0; chunk < Layout::kChunks; ++chunk) {
      float4 rows[tile::kRowsPerLane];
#pragma unroll
      for (int which = 0; which < tile::kRowsPerLane; ++which)
        rows[which] = load(q + which * 8 * Layout::kRowBytes + (chunk ^ row) * 16);
#pragma unroll
      for (int pair = 0; pair < kConfig.keys / 4; ++pair) {
        const std::uint32_t of_keys = k + pair / 2 * 8 * Layout::kRowBytes;
        const int own = pair % 2;  // the first or the second of the lane's two keys
        const float4 numbers = load(of_keys + own * Layout::kRowBytes + (chunk ^ (key + own)) * 16);
#pragma unroll
        for (int which = 0; which < tile::kRowsPerLane; ++which)
          add_product(rows[which], numbers, scores[pair / 2 * 4 + which * 2 + own]);
      }
    }
  }

  // O += P V. kHidesKeys: the lane's masked keys, whose bits of `visible` are 0, add nothing to the
  // rows that do not see them, even if their V is NaN.
  template <bool kHidesKeys>
  __device__ __forceinline__ static void add_pv(std::uint32_t values,
                                                const std::uint32_t (&visible)[tile::kRowsPerLane],
                                                float (&probs)[kScores], float (&out)[kOut]) {
    if constexpr (kHidesKeys) mark_hidden(visible, probs);
    // Chunk 4 n + column of row `key` lies at chunk 4 n ^ (key & 4) plus column ^ (key & 3). One of
    // the four addresses below plus a constant is what a load needs.
    std::uint32_t columns[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      columns[i] = values + static_cast<std::uint32_t>(lane() % tile::kLanesPerRow ^ i) * 16;
#pragma unroll
    for (int first = 0; first < kConfig.keys; first += kTogether) {
      float of_keys[kTogether][tile::kRowsPerLane];
      exchange(probs, first, of_keys);
#pragma unroll
      for (int n = 0; n < kConfig.columns / 16; ++n) {
        float sums[8] = {};
#pragma unroll
        for (int key = 0; key < kTogether; ++key) {
          const float4 numbers =
              load(columns[key % 4] + (first + key) * Layout::kRowBytes + (4 * n ^ (key & 4)) * 16);
#pragma unroll
          for (int which = 0; which < tile::kRowsPerLane; ++which) {
            const float prob = of_keys[key][which];
            if (!kHidesKeys || !(prob < 0)) add_multiple(prob, numbers, &sums[2 * which]);
          }
        }
#pragma unroll
        for (int r = 0; r < 8; ++r) out[8 * n + r] += sums[r];
      }
    }
  }

 private:
  __device__ __forceinline__ static int lane() {
    return static_cast<int>(ptx::opaque(threadIdx.x)) % 32;
  }

  __device__ __forceinline__ static float4 load(std::uint32_t address) {
    const uint4 words = ptx::ld_shared_v4(address);
    return make_float4(__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z),
                       __uint_as_float(words.w));
  }
  __device__ __forceinline__ static void add_product(const float4& a, const float4& b, float& sum) {
    sum = __fmaf_rn(a.x, b.x, sum);
    sum = __fmaf_rn(a.y, b.y, sum);
    sum = __fmaf_rn(a.z, b.z, sum);
    sum = __fmaf_rn(a.w, b.w, sum);
  }
  // out: the registers of four columns of a row: two, and two after those of the other row
  __device__ __forceinline__ static void add_multiple(float prob, const float4& numbers,
                                                      float* out) {
    out[0] = __fmaf_rn(prob, numbers.x, out[0]);
    out[1] = __fmaf_rn(prob, numbers.y, out[1]);
    out[4] = __fmaf_rn(prob, numbers.z, out[4]);
    out[5] = __fmaf_rn(prob, numbers.w, out[5]);
  }

  // The probs of kTogether keys from `first` on, of the lane's two rows. A quad has them in two
  // registers.
  __device__ __forceinline__ static void exchange(const float (&probs)[kScores], int first,
                                                  float (&of_keys)[kTogether][tile::kRowsPerLane]) {
    const int quad = lane() / tile::kLanesPerRow * tile::kLanesPerRow;
#pragma unroll
    for (int key = 0; key < kTogether; ++key) {
#pragma unroll
      for (int which = 0; which < tile::kRowsPerLane; ++which) {
        const float own = probs[first / 8 * 4 + which * 2 + key % 2];
        of_keys[key][which] = __shfl_sync(~0u, own, quad + key / 2);
      }
    }
  }

  // No prob is negative, but those of masked keys.
  __device__ __forceinline__ static void mark_hidden(
      const std::uint32_t (&visible)[tile::kRowsPerLane], float (&probs)[kScores]) {
#pragma unroll
    for (int r = 0; r < kScores; ++r) {
      const bool is_visible =
          (visible[tile::register_row(r)] >> tile::FragmentLayout::bit(r) & 1) != 0;
      if (!is_visible) probs[r] = -1;
    }
  }
};

}  // namespace tilewise::cuda::decode
