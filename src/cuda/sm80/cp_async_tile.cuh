// Tiles of Q, K and V on their way into shared memory.
#pragma once

#include "cuda/ptx/cp_async.cuh"
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

// How the threads of a block share the 16-byte chunks of a tile: eight move 128 bytes of a row. The
// rows of a thread are a multiple of 8 apart, so that its chunks lie at the same place of theirs.
template <int kRows, int kColumns, int kThreads>
struct Share {
  using Layout = tile::LdmatrixTile<kColumns>;
  static constexpr int kRowThreads = 8;
  static constexpr int kStep = kThreads / kRowThreads;  // rows
  static constexpr int kGroups = kColumns / 64;         // of 128 bytes
  static_assert(kColumns % 64 == 0 && kStep % 8 == 0 && kRows % kStep == 0,
                "Every thread moves the same number of chunks.");

  __device__ __forceinline__ static int row() {
    return static_cast<int>(threadIdx.x) / kRowThreads;
  }
  __device__ __forceinline__ static int chunk() {
    return static_cast<int>(threadIdx.x) % kRowThreads;
  }
  // Where the thread's first chunk lies in the tile in shared memory, and in the tensor.
  __device__ __forceinline__ static std::uint32_t place() {
    return static_cast<std::uint32_t>(Layout::place(row(), chunk()));
  }
  __device__ __forceinline__ static std::int64_t offset(std::int64_t stride) {
    return row() * stride + chunk() * 8;
  }

  // A tile inside of the tensor; from, address: of the thread's first chunk.
  __device__ __forceinline__ static void copy(const std::uint16_t* from, std::int64_t stride,
                                              std::uint32_t address) {
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i, from += kStep * stride) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        ptx::cp_async_16(address + i * kStep * Layout::kRowBytes + group * 128, from + group * 64);
      }
    }
  }

  // Any tile, from row `first` on; what lies outside of the tensor becomes zero.
  __device__ __forceinline__ static void copy_edge(const Rows& rows, std::int32_t first,
                                                   const std::uint16_t* from,
                                                   std::uint32_t address) {
    const std::int32_t rows_left = rows.count - first - row();
    const std::int32_t columns_left = rows.columns - chunk() * 8;
#pragma unroll 1
    for (int i = 0; i < kRows / kStep; ++i, from += kStep * rows.stride) {
#pragma unroll 1
      for (int group = 0; group < kGroups; ++group) {
        const bool inside = i * kStep < rows_left && group * 64 < columns_left;
        ptx::cp_async_16(address + i * kStep * Layout::kRowBytes + group * 128,
                         inside ? from + group * 64 : rows.first, inside);
      }
    }
  }
};

// Rows [row, row + kRows) into the tile at `to` (kRows, kColumns), by all kThreads of the block:
// asynchronously where they are wide. What lies outside of the tensor becomes zero. own, address:
// of the thread's first chunk, in the tensor and in the tile.
template <int kRows, int kColumns, int kThreads>
__device__ __forceinline__ void load_edge(const Rows& rows, std::int32_t row,
                                          const std::uint16_t* own, std::uint32_t address,
                                          unsigned char* to) {
  using Part = Share<kRows, kColumns, kThreads>;
  if (rows.wide) return Part::copy_edge(rows, row, own, address);
  using Layout = tile::LdmatrixTile<kColumns>;
#pragma unroll 1
  for (int chunk = threadIdx.x; chunk < kRows * Layout::kChunks; chunk += kThreads) {
    const int r = chunk / Layout::kChunks;
    const int c = chunk % Layout::kChunks;
    const std::int32_t left = row + r < rows.count ? rows.columns - c * 8 : 0;
    const std::uint16_t* const from = rows.first + (left > 0 ? (row + r) * rows.stride + c * 8 : 0);
    *reinterpret_cast<uint4*>(to + Layout::place(r, c)) = load_elements(from, left);
  }
}

// The same, the shortest way where there is nothing outside.
template <int kRows, int kColumns, int kThreads>
__device__ __forceinline__ void load_tile(const Rows& rows, std::int32_t row, unsigned char* to) {
  using Part = Share<kRows, kColumns, kThreads>;
  const std::uint16_t* const own = rows.first + row * rows.stride + Part::offset(rows.stride);
  const std::uint32_t address = ptx::shared_address(to) + Part::place();
  if (!rows.wide || rows.columns != kColumns || row + kRows > rows.count)
    return load_edge<kRows, kColumns, kThreads>(rows, row, own, address, to);
  Part::copy(own, rows.stride, address);
}

// All bits of the exponent set: infinity or NaN.
template <bool kFp16>
__device__ __forceinline__ bool is_special(std::uint32_t bits) {
  constexpr std::uint32_t kExponent = kFp16 ? 0x7C00u : 0x7F80u;
  return (bits & kExponent) == kExponent;
}

// The non_finite_pass pass: elements that are not finite become zero, and their rows are flagged. A
// tile that is there; by all threads, between barriers.
template <bool kFp16, int kRows, int kColumns, int kThreads>
__device__ void clean_tile(unsigned char* tile, std::uint8_t* non_finite /* (kRows) */) {
  using Layout = tile::LdmatrixTile<kColumns>;
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
      if (low || high) non_finite[row] = 1;
    }
  }
}

}  // namespace tilewise::cuda::sm80
