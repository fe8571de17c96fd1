// Multiply-adds on vectors of four floats.
#pragma once

#include <cuda_runtime_api.h>

#include "math/scalar.h"

namespace tilewise::cuda::fp32 {

__device__ __forceinline__ float4 load_vector(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}
__device__ __forceinline__ void add_product(const float4& a, const float4& b, float& sum) {
  sum = math::multiply_add(a.x, b.x, sum);
  sum = math::multiply_add(a.y, b.y, sum);
  sum = math::multiply_add(a.z, b.z, sum);
  sum = math::multiply_add(a.w, b.w, sum);
}
__device__ __forceinline__ void add_vector(float prob, const float4& value, float* sum) {
  sum[0] = math::multiply_add(prob, value.x, sum[0]);
  sum[1] = math::multiply_add(prob, value.y, sum[1]);
  sum[2] = math::multiply_add(prob, value.z, sum[2]);
  sum[3] = math::multiply_add(prob, value.w, sum[3]);
}

}  // namespace tilewise::cuda::fp32
