// Flash-Decoding on a cache of fp8 (decode/split_kv.cuh): K and V stay 8 bits wide in shared memory
// and become fp16 in registers (decode/key_operands.cuh). sm_90 and later.
#pragma once

#include "cuda/decode/split_kv.cuh"

namespace tilewise::cuda::decode {

// The template parameter is the row of the table, as in split_kv_kernel().
template <int kRow, bool kE5M2>
__global__ void __launch_bounds__(kFp8Kernels[kRow].fp8_config(kE5M2).threads(),
                                  kFp8Kernels[kRow].fp8_config(kE5M2).blocks)
    fp8_split_kv_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kFp8Kernels[kRow].fp8_config(kE5M2);
  SplitKv<kConfig>(parameters, *reinterpret_cast<Shared<kConfig>*>(dynamic_shared())).run();
}

template <int kRow, bool kE5M2>
inline constexpr int kFp8SharedBytes = sizeof(Shared<kFp8Kernels[kRow].fp8_config(kE5M2)>);

template <int kRow, bool kE5M2>
cudaError_t Fp8SplitKvKernel<kRow, kE5M2>::load() {
  static_assert(kFp8SharedBytes<kRow, kE5M2> <= kFp8Kernels[kRow].shared_bytes,
                "A row of the table fits the shared memory that it is for.");
  return cuda::load(fp8_split_kv_kernel<kRow, kE5M2>, kFp8SharedBytes<kRow, kE5M2>);
}

template <int kRow, bool kE5M2>
cudaError_t Fp8SplitKvKernel<kRow, kE5M2>::start(const Parameters& parameters,
                                                 cudaStream_t stream) {
  constexpr int kThreads = kFp8Kernels[kRow].fp8_config(kE5M2).threads();
  const Grid grid = {std::int64_t{parameters.gangs} * parameters.gang, kThreads,
                     kFp8SharedBytes<kRow, kE5M2>};
  return launch_early(fp8_split_kv_kernel<kRow, kE5M2>, grid, stream, parameters);
}

}  // namespace tilewise::cuda::decode
