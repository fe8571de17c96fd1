// Tiles of Q, K and V on their way into shared memory.
#pragma once

#include "cuda/forward/fp32/layout.h"
#include "cuda/forward/fp32/shared.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/cp_async.cuh"

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
      ptx::cp_async_16(address, source, inside);
    } else {
      ptx::cp_async_4(address, source, inside);
    }
  }
}

// The tiles of K or of V, one after the other: what is the same for all of them is computed once.
// Tiles inside of the tensor are copied by the shortest way, others as load_tile() does.
template <int kRows, int kColumns, int kStride, int kThreads, int kRun>
class Tiles {
 public:
  // rows: in shared memory. All threads.
  __device__ __forceinline__ explicit Tiles(const Rows& rows)
      : rows_(rows),
        from_(rows.first + row() * kRun * rows.stride + chunk() * kVector),
        stride_(rows.stride),
        inside_(rows.wide && rows.columns == kColumns ? rows.count / kRows : 0) {}

  // Where this thread's first chunk lies in a tile, in bytes.
  __device__ __forceinline__ static std::uint32_t place() {
    return static_cast<std::uint32_t>(row() * kStride + chunk() * kVector) * sizeof(float);
  }

  // Tile `key` to `tile`; address: of place() in it.
  __device__ __forceinline__ void load(std::int32_t key, float* tile, std::uint32_t address) const {
    if (key >= inside_)
      return load_tile<kRows, kColumns, kStride, kThreads, kRun>(rows_, key * kRows, tile);
    if (threadIdx.x >= kCopiers) return;
    const float* from = from_ + std::int64_t{key} * kRows * stride_;
#pragma unroll
    for (int first = 0; first < kRows; first += kStep) {
      ptx::cp_async_16(address + first * kStride * sizeof(float), from);
      from += (source(first + kStep) - source(first)) * stride_;
    }
  }

 private:
  // A power of two of the threads copies, so that the rows of a thread are the same number apart.
  static constexpr int kCopiers = kThreads & (kThreads - 1) ? kThreads / 3 * 2 : kThreads;
  static constexpr int kCopies = kColumns / kVector;  // of a row
  static constexpr int kStep = kCopiers / kCopies;
  static_assert((kCopiers & (kCopiers - 1)) == 0 && kStep > 0 && kRows % kStep == 0 &&
                    (kRun == 1 || kAcross % kStep == 0),
                "Row first + r of the tile is row source(first) + r * kRun.");
  __device__ __forceinline__ static constexpr int source(int place) {
    return kRun > 1 ? key_at(place, kRun) : place;
  }
  __device__ __forceinline__ static int row() { return static_cast<int>(threadIdx.x) / kCopies; }
  __device__ __forceinline__ static int chunk() { return static_cast<int>(threadIdx.x) % kCopies; }

  const Rows& rows_;
  const float* from_;  // this thread's first chunk of tile 0
  std::int64_t stride_;
  std::int32_t inside_;  // tiles
};

__device__ __forceinline__ bool is_special(float x) { return !(x - x == 0); }

// The non_finite_pass pass: elements that are not finite become zero, and their rows are flagged. A
// tile that is there; by all threads, between barriers.
template <int kRows, int kColumns, int kStride, int kThreads, int kRun>
__device__ void clean_tile(float* tile, std::uint8_t* non_finite /* (kRows) */) {
#pragma unroll 1
  for (int i = threadIdx.x; i < kRows * kColumns; i += kThreads) {
    const int place = i / kColumns;
    float& element = tile[place * kStride + i % kColumns];
    if (!is_special(element)) continue;
    element = 0;
    non_finite[kRun > 1 ? key_at(place, kRun) : place] = 1;
  }
}

}  // namespace tilewise::cuda::fp32
