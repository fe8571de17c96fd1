// Non-finite elements of V in tiles of keys that not every row of a block sees whole. A masked prob
// is 0, but 0 * NaN is NaN. Such a tile is searched for non-finite elements; where it has some,
// they become zero for the product P V, and what the visible ones contribute is added for each row.
#pragma once

#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/sm80/cp_async_tile.cuh"
#include "cuda/tile/markers.cuh"
#include "cuda/tile/non_finite.cuh"

namespace tilewise::cuda::sm80 {

template <bool kFp16>
__device__ __forceinline__ bool has_non_finite(std::uint32_t pair) {
  return tile::is_non_finite16<kFp16>(pair) || tile::is_non_finite16<kFp16>(pair >> 16);
}

// Adds the product of M and of the markers of 16 keys and 16 columns of V to out (8). It is rounded
// to fp32 before it is added: tensor cores add -2^200 itself to an infinite sum, which stays
// infinite.
__device__ __forceinline__ void add_marker_products(const std::uint32_t (&visible)[4],
                                                    const std::uint32_t (&markers)[4], float* out) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sums[4] = {0, 0, 0, 0};
    ptx::mma_m16n8k16<false>(sums, visible, markers[2 * i], markers[2 * i + 1]);
#pragma unroll
    for (int r = 0; r < 4; ++r) out[4 * i + r] += sums[r];
  }
}

// The chunks of a loaded tile that TileCopy and load_edge() give to one thread.
template <bool kFp16, int kRows, int kColumns, int kThreads>
struct OwnChunks {
  using Copy = TileCopy<kRows, kColumns, kThreads>;

  // The thread's first chunk. It is computed each time: the loops have no register for it.
  __device__ __forceinline__ static unsigned char* first(unsigned char* values) {
    return values + Copy::tile_offset(ptx::opaque(threadIdx.x));
  }
  __device__ __forceinline__ static uint4& at(unsigned char* first_chunk, int i, int group) {
    return *reinterpret_cast<uint4*>(first_chunk + i * Copy::kStep * Copy::Layout::kRowBytes +
                                     group * 128);
  }

  // Says whether the chunks hold a non-finite element, after this thread has waited for its copies.
  // 0 * x is NaN for those alone, and stays in the sum.
  __device__ __forceinline__ static bool hold_non_finite(unsigned char* values) {
    constexpr std::uint32_t kMagnitudes = 0x7FFF7FFFu;
    unsigned char* const own = first(values);
    std::uint32_t sums[4] = {};
#pragma unroll 2
    for (int i = 0; i < kRows / Copy::kStep; ++i) {
#pragma unroll
      for (int group = 0; group < Copy::kGroups; ++group) {
        const uint4 chunk = at(own, i, group);
        sums[0] = ptx::fma_x2<kFp16>(chunk.x, 0, sums[0]);
        sums[1] = ptx::fma_x2<kFp16>(chunk.y, 0, sums[1]);
        sums[2] = ptx::fma_x2<kFp16>(chunk.z, 0, sums[2]);
        sums[3] = ptx::fma_x2<kFp16>(chunk.w, 0, sums[3]);
      }
    }
    return ((sums[0] | sums[1] | sums[2] | sums[3]) & kMagnitudes) != 0;
  }

  // Replaces the non-finite elements of the chunks by zero. All threads call it, between two
  // barriers.
  __device__ static void zero_non_finite(unsigned char* values) {
    unsigned char* const own = first(values);
#pragma unroll 1
    for (int i = 0; i < kRows / Copy::kStep; ++i) {
#pragma unroll 1
      for (int group = 0; group < Copy::kGroups; ++group) {
        uint4 chunk = at(own, i, group);
        if (tile::zero_non_finite<kFp16>(chunk)) at(own, i, group) = chunk;
      }
    }
  }
};

}  // namespace tilewise::cuda::sm80
