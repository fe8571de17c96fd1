// Tiles of Q, K and V on their way into shared memory.
#pragma once

#include "cuda/ptx/async_copy.cuh"
#include "cuda/sm80/shared.cuh"
#include "cuda/tile/uniform.cuh"

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

// The tiles of K or of V, one after the other. Tiles inside of the tensor are copied by the shortest
// way, others as load_tile() does. kHeld: where this thread's part begins stays in registers.
template <int kRows, int kColumns, int kThreads, bool kHeld>
class Tiles {
 public:
  using Layout = tile::RowTile<kColumns>;

  // rows: in shared memory. All threads.
  __device__ __forceinline__ explicit Tiles(const Rows& rows)
      : rows_(rows), held_(kHeld ? start(rows.stride) : nullptr) {}

  // How many tiles the shortest way can copy.
  __device__ __forceinline__ std::int32_t inside() const {
    return rows_.wide && rows_.columns == kColumns ? rows_.count / kRows : 0;
  }

  // Where this thread's first chunk lies in a tile.
  __device__ __forceinline__ static std::uint32_t place() {
    return static_cast<std::uint32_t>(Layout::place(row(), chunk()));
  }

  // Tile `key` to `tile`. address: of place() in it; stride: that of the rows, from the parameters,
  // where it costs no register.
  __device__ __forceinline__ void load(std::int32_t key, bool inside, std::int64_t stride,
                                       unsigned char* tile, std::uint32_t address) const {
    if (!inside) return load_tile<kRows, kColumns, kThreads>(rows_, key * kRows, tile);
    const std::uint16_t* from = kHeld ? held_ : start(stride);
    from += std::int64_t{key} * kRows * stride;
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i, from += kStep * stride) {
#pragma unroll
      for (int group = 0; group < kColumns / 64; ++group) {
        ptx::copy_chunk(address + i * kStep * Layout::kRowBytes + group * 128, from + group * 64);
      }
    }
  }

 private:
  static constexpr int kRowThreads = 8;  // that move 128 bytes of a row
  static constexpr int kStep = kThreads / kRowThreads;
  __device__ __forceinline__ static int row() {
    return static_cast<int>(threadIdx.x) / kRowThreads;
  }
  __device__ __forceinline__ static int chunk() {
    return static_cast<int>(threadIdx.x) % kRowThreads;
  }
  // This thread's first chunk of tile 0.
  __device__ __forceinline__ const std::uint16_t* start(std::int64_t stride) const {
    return rows_.first + row() * stride + chunk() * 8;
  }

  const Rows& rows_;
  const std::uint16_t* held_;
};

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
