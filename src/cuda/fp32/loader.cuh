// Tiles of Q, K and V on their way into shared memory.
#pragma once

#include "cuda/fp32/layout.h"
#include "cuda/fp32/shared.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/async_copy.cuh"

namespace tilewise::cuda::fp32 {

// Rows [row, row + kRows) of a tensor into a tile of shared memory (kRows, kStride), by all
// kThreads of the block, asynchronously: 16 bytes at a time where rows are wide, else 4. What lies
// outside of the tensor becomes zero, up to kColumns. kRun: row r of the tile is row key_at(r,
// kRun).
template <int kRows, int kColumns, int kStride, int kThreads, int kRun>
__device__ __forceinline__ void load_tile(const Rows& rows, std::int32_t row, float* to) {
  const int each = rows.wide ? kVector : 1;  // floats of a copy
  const int copies = kColumns / each;        // of a row
  const std::uint32_t start = ptx::shared_address(to);
#pragma unroll 4
  for (int i = threadIdx.x; i < kRows * copies; i += kThreads) {
    const int place = i / copies;
    const int column = i % copies * each;
    const std::int32_t from = row + (kRun > 1 ? key_at(place, kRun) : place);
    const bool inside = from < rows.count && column < rows.columns;
    const float* const source = rows.first + (inside ? from * rows.stride + column : 0);
    const std::uint32_t address = start + (place * kStride + column) * 4;
    if (rows.wide) {
      ptx::copy_chunk(address, source, inside);
    } else {
      ptx::copy_word(address, source, inside);
    }
  }
}

__device__ __forceinline__ bool is_special(float x) { return !(x - x == 0); }

// The careful pass: elements that are not finite become zero, and their rows are flagged. A tile
// that is there; by all threads, between barriers.
template <int kRows, int kColumns, int kStride, int kThreads, int kRun>
__device__ void clean_tile(float* tile, std::uint8_t* bad /* (kRows) */) {
#pragma unroll 1
  for (int i = threadIdx.x; i < kRows * kColumns; i += kThreads) {
    const int place = i / kColumns;
    float& element = tile[place * kStride + i % kColumns];
    if (!is_special(element)) continue;
    element = 0;
    bad[kRun > 1 ? key_at(place, kRun) : place] = 1;
  }
}

}  // namespace tilewise::cuda::fp32
