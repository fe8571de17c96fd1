// Stores of gradients in any type and alignment.
#pragma once

#include "cuda/ptx/arithmetic.cuh"
#include "math/number.h"
#include "problem/problem.h"

namespace tilewise::cuda::backward {

// The destination of the rows of a tile of a gradient.
struct Destination {
  const problem::View& view;
  std::int64_t offset;   // of the tile's first row
  std::int32_t rows;     // of the tile that exist
  std::int32_t columns;  // D or Dv
  float scale;

  template <class Element>
  __device__ __forceinline__ Element* at(std::int32_t row) const {
    return static_cast<Element*>(view.data) + offset + row * view.row;
  }
};

// Two neighbouring numbers of a row, of which `count` exist.
template <bool kFp16>
__device__ __forceinline__ void store_pair(const Destination& to, std::int32_t row,
                                           std::int32_t column, float low, float high) {
  const std::int32_t count = to.columns - column;
  if (row >= to.rows || count <= 0) return;
  if (to.view.dtype == TILEWISE_FP32) {
    float* const at = to.at<float>(row) + column;
    at[0] = low;
    if (count > 1) at[1] = high;
    return;
  }
  std::uint16_t* const at = to.at<std::uint16_t>(row) + column;
  const std::uint32_t pair = ptx::pack<kFp16>(low, high);
  if (count > 1 && reinterpret_cast<std::uintptr_t>(at) % 4 == 0) {
    *reinterpret_cast<std::uint32_t*>(at) = pair;
    return;
  }
  at[0] = static_cast<std::uint16_t>(pair);
  if (count > 1) at[1] = static_cast<std::uint16_t>(pair >> 16);
}

}  // namespace tilewise::cuda::backward
