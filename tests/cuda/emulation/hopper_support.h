// For the tests of the Hopper instructions of the emulation: boxes of tensors in shared memory, and
// an mbarrier.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/emulation/test_support.h"
#include "cuda/emulation/tma.h"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/tile/swizzle.h"

namespace tilewise::cuda {

using Number = std::uint16_t;

inline constexpr int kPanel = tile::kPanelColumns;

inline constexpr int kBoxRows = 16;

// A tensor (batch, heads, rows, columns) whose elements count up from 1.
struct Tensor {
  int batch, heads, rows, columns;

  int count() const { return batch * heads * rows * columns; }
  Number at(int b, int h, int r, int c) const {
    const bool inside =
        b >= 0 && b < batch && h >= 0 && h < heads && r >= 0 && r < rows && c >= 0 && c < columns;
    return inside ? static_cast<Number>(1 + ((b * heads + h) * rows + r) * columns + c) : Number{0};
  }
};

// Encodes a tensor map for boxes of (box_rows, box_columns). `misfit` bytes are added to the row
// stride.
inline CUresult encode(const Tensor& tensor, const void* data, int box_rows, CUtensorMap* map,
                       cuuint32_t box_columns = kPanel, cuuint64_t misfit = 0) {
  const auto size = [](int x) { return static_cast<cuuint64_t>(x); };
  const cuuint64_t sizes[] = {size(tensor.columns), size(tensor.rows), size(tensor.heads),
                              size(tensor.batch)};
  const cuuint64_t row = sizes[0] * sizeof(Number) + misfit;
  const cuuint64_t strides[] = {row, row * sizes[1], row * sizes[1] * sizes[2]};
  const cuuint32_t box[] = {box_columns, static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  return emulation::encode_tensor_map(
      map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, emulation::kMapRank, const_cast<void*>(data), sizes,
      strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

// The shared memory of the test kernels.
struct Room {
  unsigned char boxes[4][kBoxRows * tile::kPanelRowBytes];
  std::uint64_t barrier;
  std::uint64_t other;
};
inline constexpr Grid kRoom = {1, 128, sizeof(Room)};

inline Room& room() { return *reinterpret_cast<Room*>(dynamic_shared()); }
inline std::uint32_t barrier_address() { return ptx::shared_address(&room().barrier); }

inline void init_room(std::uint32_t arrivals) {
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier_address(), arrivals);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
}

}  // namespace tilewise::cuda
