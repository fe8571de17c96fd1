// Tiles of rows in shared memory: copies from global memory with cp.async, and their elements that
// are not finite.
#pragma once

#include "cuda/fp32/layout.h"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/sm80/shared.cuh"
#include "cuda/tile/non_finite.cuh"

namespace tilewise::cuda::fp32 {

using Rows = sm80::RowsOf<float>;

// A tile in shared memory, (rows, stride), which all threads of the block load. Columns up to
// `columns` are loaded; row r of the tile is row key_at(r, run) of the tensor's rows.
struct TileShape {
  int rows;
  int columns;
  int stride;  // floats
  int threads;
  int run;
};

// Loads a tile from row `row` of the tensor on, asynchronously: 16 bytes at a time if rows are
// aligned to them, else 4. What lies outside of the tensor becomes zero.
template <TileShape kShape>
__device__ __forceinline__ void load_tile(const Rows& rows, std::int32_t row, float* to) {
  const int each = rows.aligned16 ? kVector : 1;  // floats of a copy
  const int copies = kShape.columns / each;       // of a row
  const std::uint32_t start = ptx::shared_address(to);
#pragma unroll 4
  for (int i = threadIdx.x; i < kShape.rows * copies; i += kShape.threads) {
    const int tile_row = i / copies;
    const int column = i % copies * each;
    const std::int32_t from = row + (kShape.run > 1 ? key_at(tile_row, kShape.run) : tile_row);
    const bool inside = from < rows.count && column < rows.columns;
    const float* const source = rows.first + (inside ? from * rows.stride + column : 0);
    const std::uint32_t address = start + (tile_row * kShape.stride + column) * 4;
    if (rows.aligned16) {
      ptx::cp_async_16(address, source, inside);
    } else {
      ptx::cp_async_4(address, source, inside);
    }
  }
}

// Loads the tiles of K or of V, one after the other. What is the same for all of them is computed
// once. Tiles inside of the tensor take the shortest path, others are loaded by load_tile().
template <TileShape kShape>
class TileLoader {
 public:
  // `rows` is in shared memory. All threads construct one.
  __device__ __forceinline__ explicit TileLoader(const Rows& rows)
      : rows_(rows),
        source_(rows.first + row() * kShape.run * rows.stride + chunk() * kVector),
        stride_(rows.stride),
        tiles_inside_(rows.aligned16 && rows.columns == kShape.columns ? rows.count / kShape.rows
                                                                       : 0) {}

  // The offset of this thread's first chunk in a tile, in bytes.
  __device__ __forceinline__ static std::uint32_t tile_offset() {
    return static_cast<std::uint32_t>(row() * kShape.stride + chunk() * kVector) * sizeof(float);
  }

  // Loads tile `key_tile` into `tile`. `address` is that of tile_offset() in it.
  __device__ __forceinline__ void load(std::int32_t key_tile, float* tile,
                                       std::uint32_t address) const {
    if (key_tile >= tiles_inside_) return load_tile<kShape>(rows_, key_tile * kShape.rows, tile);
    if (threadIdx.x >= kCopiers) return;
    const float* from = source_ + std::int64_t{key_tile} * kShape.rows * stride_;
#pragma unroll
    for (int first = 0; first < kShape.rows; first += kStep) {
      ptx::cp_async_16(address + first * kShape.stride * sizeof(float), from);
      from += (source(first + kStep) - source(first)) * stride_;
    }
  }

 private:
  // The number of threads that copy is a power of two, so that the rows of a thread are equally far
  // apart.
  static constexpr int kCopiers =
      kShape.threads & (kShape.threads - 1) ? kShape.threads / 3 * 2 : kShape.threads;
  static constexpr int kCopies = kShape.columns / kVector;  // of a row
  static constexpr int kStep = kCopiers / kCopies;
  static_assert((kCopiers & (kCopiers - 1)) == 0 && kStep > 0 && kShape.rows % kStep == 0 &&
                    (kShape.run == 1 || kAcross % kStep == 0),
                "Row first + r of the tile is row source(first) + r * kShape.run.");
  __device__ __forceinline__ static constexpr int source(int tile_row) {
    return kShape.run > 1 ? key_at(tile_row, kShape.run) : tile_row;
  }
  __device__ __forceinline__ static int row() { return static_cast<int>(threadIdx.x) / kCopies; }
  __device__ __forceinline__ static int chunk() { return static_cast<int>(threadIdx.x) % kCopies; }

  const Rows& rows_;
  const float* source_;  // this thread's first chunk of tile 0
  std::int64_t stride_;
  std::int32_t tiles_inside_;  // of the tensor
};

// Calls function(four adjacent elements, their row) for this thread's share of a loaded tile.
template <TileShape kShape, class Function>
__device__ __forceinline__ void for_each_vector(float* tile, const Function& function) {
  constexpr int kVectors = kShape.columns / kVector;  // of a row
#pragma unroll 2
  for (int i = threadIdx.x; i < kShape.rows * kVectors; i += kShape.threads) {
    const int row = i / kVectors;
    function(*reinterpret_cast<float4*>(tile + row * kShape.stride + i % kVectors * kVector), row);
  }
}

// Says whether a loaded tile has a non-finite element in this thread's share. 0 * x is NaN for
// those alone, and stays in the sum.
template <TileShape kShape>
__device__ __forceinline__ bool holds_non_finite(float* tile) {
  float sum = 0;
  for_each_vector<kShape>(tile, [&](const float4& x, int) {
    sum = __fmaf_rn(x.x, 0.0f, __fmaf_rn(x.y, 0.0f, sum));
    sum = __fmaf_rn(x.z, 0.0f, __fmaf_rn(x.w, 0.0f, sum));
  });
  return sum != sum;
}

// Replaces the non-finite elements of a loaded tile by zero, and calls found(row) for the rows
// where this thread has seen one. All threads call it, between two barriers.
template <TileShape kShape, class Found>
__device__ __forceinline__ void zero_non_finite(float* tile, const Found& found) {
  for_each_vector<kShape>(tile, [&](float4& x, int row) {
    for (float* const own : {&x.x, &x.y, &x.z, &x.w}) {
      if (!tile::is_non_finite(*own)) continue;
      *own = 0;
      found(row);
    }
  });
}

}  // namespace tilewise::cuda::fp32
