// Copies tiles of Q, K and V from global to shared memory with cp.async.
#pragma once

#include "cuda/ptx/cp_async.cuh"
#include "cuda/sm80/shared.cuh"

namespace tilewise::cuda::sm80 {

// Up to 8 elements from `from` on; the others are zero.
__device__ __forceinline__ uint4 load_elements(const std::uint16_t* from, std::int32_t count) {
  uint4 chunk = make_uint4(0, 0, 0, 0);
  std::uint32_t* const words = reinterpret_cast<std::uint32_t*>(&chunk);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < count) words[i / 2] |= static_cast<std::uint32_t>(from[i]) << (i % 2 * 16);
  }
  return chunk;
}

// How the threads of a block share the 16-byte chunks of a tile. Eight threads copy 128 bytes of a
// row. The rows of one thread are a multiple of 8 apart, so that the swizzle puts its chunks at the
// same offset of each of them.
template <int kRows, int kColumns, int kThreads>
struct TileCopy {
  using Layout = tile::LdmatrixTile<kColumns>;
  static constexpr int kRowThreads = 8;
  static constexpr int kStep = kThreads / kRowThreads;  // rows
  static constexpr int kGroups = kColumns / 64;         // of 128 bytes
  static_assert(kColumns % 64 == 0 && kStep % 8 == 0 && kRows % kStep == 0,
                "Every thread copies the same number of chunks.");

  // `thread`: the number of the thread, which a caller may hide from the compiler (ptx::opaque).
  __device__ __forceinline__ static int row(std::uint32_t thread = threadIdx.x) {
    return static_cast<int>(thread / kRowThreads);
  }
  __device__ __forceinline__ static int chunk(std::uint32_t thread = threadIdx.x) {
    return static_cast<int>(thread % kRowThreads);
  }

  // The offset of the thread's first chunk, in bytes of the tile and in elements of the tensor.
  __device__ __forceinline__ static std::uint32_t tile_offset(std::uint32_t thread = threadIdx.x) {
    return static_cast<std::uint32_t>(Layout::place(row(thread), chunk(thread)));
  }
  __device__ __forceinline__ static std::int64_t tensor_offset(std::int64_t stride,
                                                               std::uint32_t thread = threadIdx.x) {
    return row(thread) * stride + chunk(thread) * 8;
  }

  // Copies a tile that lies inside of the tensor. `from` and `address` are those of the thread's
  // first chunk.
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

  // Copies any tile, from row `first` on. What lies outside of the tensor becomes zero.
  __device__ __forceinline__ static void copy_edge(const Rows& rows, std::int32_t first,
                                                   const std::uint16_t* from, std::uint32_t address,
                                                   std::uint32_t thread) {
    const std::int32_t rows_left = rows.count - first - row(thread);
    const std::int32_t columns_left = rows.columns - chunk(thread) * 8;
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

// Loads rows [row, row + kRows) into the tile at `to` (kRows, kColumns) with all kThreads of the
// block, asynchronously if the rows are aligned to 16 bytes. What lies outside of the tensor
// becomes zero. `from` and `address` are those of the thread's first chunk in the tensor and in the
// tile.
template <int kRows, int kColumns, int kThreads>
__device__ __forceinline__ void load_edge(const Rows& rows, std::int32_t row,
                                          const std::uint16_t* from, std::uint32_t address,
                                          unsigned char* to, std::uint32_t thread) {
  using Copy = TileCopy<kRows, kColumns, kThreads>;
  if (rows.aligned16) return Copy::copy_edge(rows, row, from, address, thread);
  using Layout = tile::LdmatrixTile<kColumns>;
  unsigned char* const own = to + Copy::tile_offset(thread);
#pragma unroll 1
  for (int i = 0; i < kRows / Copy::kStep; ++i) {
#pragma unroll 1
    for (int group = 0; group < Copy::kGroups; ++group) {
      const std::int32_t left = row + Copy::row(thread) + i * Copy::kStep < rows.count
                                    ? rows.columns - Copy::chunk(thread) * 8 - group * 64
                                    : 0;
      const std::uint16_t* const source =
          left > 0 ? from + i * Copy::kStep * rows.stride + group * 64 : rows.first;
      *reinterpret_cast<uint4*>(own + i * Copy::kStep * Layout::kRowBytes + group * 128) =
          load_elements(source, left);
    }
  }
}

// Loads a tile like load_edge(), but on the shortest path if all of it lies inside of the tensor.
template <int kRows, int kColumns, int kThreads>
__device__ __forceinline__ void load_tile(const Rows& rows, std::int32_t row, unsigned char* to,
                                          std::uint32_t thread = threadIdx.x) {
  using Copy = TileCopy<kRows, kColumns, kThreads>;
  const std::uint16_t* const from =
      rows.first + row * rows.stride + Copy::tensor_offset(rows.stride, thread);
  const std::uint32_t address = ptx::shared_address(to) + Copy::tile_offset(thread);
  if (!rows.aligned16 || rows.columns != kColumns || row + kRows > rows.count)
    return load_edge<kRows, kColumns, kThreads>(rows, row, from, address, to, thread);
  Copy::copy(from, rows.stride, address);
}

}  // namespace tilewise::cuda::sm80
