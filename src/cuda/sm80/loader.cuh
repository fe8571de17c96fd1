// Tiles of Q, K and V on their way into shared memory.
#pragma once

#include "cuda/ptx/async_copy.cuh"
#include "cuda/sm80/shared.cuh"

namespace tilewise::cuda::sm80 {

// Up to 8 elements from `from` on, the others zero.
__device__ __forceinline__ uint4 load_elements(const std::uint16_t* from, std::int32_t count) {
  uint4 chunk = make_uint4(0, 0, 0, 0);
  std::uint32_t* const words = reinterpret_cast<std::uint32_t*>(&chunk);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < count) words[i / 2] |= static_cast<std::uint32_t>(from[i]) << (i % 2 * 16);
  }
  return chunk;
}

// Eight threads move 128 bytes of a row. The rows of a thread are a multiple of 8 apart, so that
// its chunks lie at the same place of theirs.
template <int kRows, int kColumns, int kThreads>
__device__ __forceinline__ void load_wide(const Rows& rows, std::int32_t row, unsigned char* to) {
  constexpr int kRowThreads = 8;
  constexpr int kStep = kThreads / kRowThreads;
  static_assert(kColumns % 64 == 0 && kStep % 8 == 0 && kRows % kStep == 0,
                "Every thread moves the same number of chunks.");
  using Layout = tile::RowTile<kColumns>;
  const int r = static_cast<int>(threadIdx.x) / kRowThreads;
  const int c = static_cast<int>(threadIdx.x) % kRowThreads;
  const std::uint32_t address = ptx::shared_address(to) + Layout::place(r, c);
  const std::int64_t step = rows.stride * kStep;
  const std::uint16_t* from = rows.first + (row + r) * rows.stride + c * 8;
  if (row + kRows <= rows.count && rows.columns == kColumns) {
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i, from += step) {
#pragma unroll
      for (int group = 0; group < kColumns / 64; ++group) {
        ptx::copy_chunk(address + i * kStep * Layout::kRowBytes + group * 128, from + group * 64);
      }
    }
    return;
  }
  const std::int32_t rows_left = rows.count - row - r;
  const std::int32_t columns_left = rows.columns - c * 8;
#pragma unroll 1
  for (int i = 0; i < kRows / kStep; ++i, from += step) {
#pragma unroll 1
    for (int group = 0; group < kColumns / 64; ++group) {
      const bool inside = i * kStep < rows_left && group * 64 < columns_left;
      ptx::copy_chunk(address + i * kStep * Layout::kRowBytes + group * 128,
                      inside ? from + group * 64 : rows.first, inside);
    }
  }
}

// Rows [row, row + kRows) into the tile at `to` (kRows, kColumns), by all kThreads of the block:
// asynchronously where they are wide. What lies outside of the tensor becomes zero.
template <int kRows, int kColumns, int kThreads>
__device__ __forceinline__ void load_tile(const Rows& rows, std::int32_t row, unsigned char* to) {
  if (rows.wide) return load_wide<kRows, kColumns, kThreads>(rows, row, to);
  using Layout = tile::RowTile<kColumns>;
#pragma unroll 1
  for (int chunk = threadIdx.x; chunk < kRows * Layout::kChunks; chunk += kThreads) {
    const int r = chunk / Layout::kChunks;
    const int c = chunk % Layout::kChunks;
    const std::int32_t left = row + r < rows.count ? rows.columns - c * 8 : 0;
    const std::uint16_t* const from = rows.first + (left > 0 ? (row + r) * rows.stride + c * 8 : 0);
    *reinterpret_cast<uint4*>(to + Layout::place(r, c)) = load_elements(from, left);
  }
}

// All bits of the exponent set: infinity or NaN.
template <bool kFp16>
__device__ __forceinline__ bool is_special(std::uint32_t bits) {
  constexpr std::uint32_t kExponent = kFp16 ? 0x7C00u : 0x7F80u;
  return (bits & kExponent) == kExponent;
}

// The careful pass: elements that are not finite become zero, and their rows are flagged. A tile
// that is there; by all threads, between barriers.
template <bool kFp16, int kRows, int kColumns, int kThreads>
__device__ void clean_tile(unsigned char* tile, std::uint8_t* bad /* (kRows) */) {
  using Layout = tile::RowTile<kColumns>;
#pragma unroll 1
  for (int chunk = threadIdx.x; chunk < kRows * Layout::kChunks; chunk += kThreads) {
    const int row = chunk / Layout::kChunks;
    std::uint32_t* const words =
        reinterpret_cast<std::uint32_t*>(tile + Layout::place(row, chunk % Layout::kChunks));
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const bool low = is_special<kFp16>(words[i]);
      const bool high = is_special<kFp16>(words[i] >> 16);
      if (low) words[i] &= 0xFFFF0000u;
      if (high) words[i] &= 0x0000FFFFu;
      if (low || high) bad[row] = 1;
    }
  }
}

}  // namespace tilewise::cuda::sm80
