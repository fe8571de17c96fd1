// Rows of a tile of shared memory with elements that are not finite: zeros in their place for a
// product, and what they add to the rows that see them.
#pragma once

#include <type_traits>

#include "cuda/backward/sm80/gemm.cuh"
#include "cuda/sm80/shared.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/non_finite.cuh"
#include "math/number.h"

namespace tilewise::cuda::backward::sm80 {

template <int kColumns, bool kFp16, int kThreads>
struct NonFiniteRows {
  using Layout = tile::LdmatrixTile<kColumns>;

  // Replaces the non-finite elements of a loaded tile by zero, and flags their rows. Says whether
  // this thread has found one.
  template <int kRows>
  __device__ __forceinline__ static bool zero(unsigned char* tile, std::uint8_t* flags) {
    bool found = false;
#pragma unroll 1
    for (int i = static_cast<int>(ptx::opaque(threadIdx.x)); i < kRows * Layout::kChunks;
         i += kThreads) {
      const int row = i / Layout::kChunks;
      uint4& chunk = *reinterpret_cast<uint4*>(tile + Layout::place(row, i % Layout::kChunks));
      if (!tile::zero_non_finite<kFp16>(chunk)) continue;
      flags[row] = 1;
      found = true;
    }
    return found;
  }

  // Says whether this thread finds an element of a loaded tile that is not finite.
  template <int kRows>
  __device__ __forceinline__ static bool hold(const unsigned char* tile) {
    bool found = false;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kRows * Layout::kChunks; i += kThreads) {
      uint4 chunk = reinterpret_cast<const uint4*>(tile)[i];
      found |= tile::zero_non_finite<kFp16>(chunk);
    }
    return found;
  }

  // dV += P^T dO, of the elements of a row of dO that are not finite. The row is `row` of the tile
  // of P (queries, kKeys) and `number` of `dout`. A prob of 0 is skipped: its pair may be masked.
  template <class KeyGradient, int kKeys>
  __device__ static void add_row(const unsigned char* probs, int row, const cuda::sm80::Rows& dout,
                                 std::int64_t number, typename KeyGradient::Fragments& dv) {
    using ProbLayout = tile::LdmatrixTile<kKeys>;
    const std::uint32_t thread = ptx::opaque(threadIdx.x);  // nothing is computed ahead of the loop
    const int lane = static_cast<int>(thread % 32);
    const std::uint16_t* const from = dout.first + number * dout.stride;
#pragma unroll
    for (int row_block = 0; row_block < KeyGradient::kRowBlocks; ++row_block) {
#pragma unroll
      for (int r = 0; r < KeyGradient::kCount; ++r) {
        const int key =
            KeyGradient::row(thread) + 16 * row_block + tile::lane_row(lane, tile::register_row(r));
        const int column =
            KeyGradient::column(thread) + tile::register_column(r) + tile::lane_column(lane);
        const std::uint32_t prob = *reinterpret_cast<const std::uint16_t*>(
            probs + ProbLayout::place(row, key / 8) + key % 8 * 2);
        if (prob == 0 || column >= dout.columns) continue;
        const std::uint32_t value = from[column];
        if (tile::is_non_finite16<kFp16>(value))
          dv[row_block][r] += to_float(prob) * to_float(value);
      }
    }
  }

 private:
  __device__ __forceinline__ static float to_float(std::uint32_t bits) {
    using Half = std::conditional_t<kFp16, math::Float16, math::BFloat16>;
    return math::to_float(Half{static_cast<std::uint16_t>(bits)});
  }
};

}  // namespace tilewise::cuda::backward::sm80
