// Stores of rows of gradients.
#pragma once

#include "cuda/backward/fp32/kernel_table.h"
#include "cuda/backward/store.cuh"
#include "cuda/ptx/global_store.cuh"

namespace tilewise::cuda::backward::fp32 {

// Stores four adjacent numbers of a row, times the scale, as far as they exist.
__device__ __forceinline__ void store_run(const Destination& to, std::int32_t row,
                                          std::int32_t column, const float* run) {
  const std::int32_t count = to.columns - column;
  if (row >= to.rows || count <= 0) return;
  float* const at = to.at<float>(row) + column;
  if (count >= kVector && reinterpret_cast<std::uintptr_t>(at) % 16 == 0) {
    ptx::st_global_v4(at, make_float4(run[0] * to.scale, run[1] * to.scale, run[2] * to.scale,
                                      run[3] * to.scale));
    return;
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (i < count) at[i] = run[i] * to.scale;
  }
}

}  // namespace tilewise::cuda::backward::fp32
