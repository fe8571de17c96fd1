// Flash-Decoding in fp32 (decode/split_kv.cuh), with multiply-adds for products
// (decode/fp32/gemm.cuh).
#pragma once

#include "cuda/decode/split_kv.cuh"

namespace tilewise::cuda::decode {

template <int kRow>
__global__ void __launch_bounds__(kFp32Kernels[kRow].fp32_config().threads(),
                                  kFp32Kernels[kRow].fp32_config().blocks)
    fp32_split_kv_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kFp32Kernels[kRow].fp32_config();
  SplitKv<kConfig>(parameters, *reinterpret_cast<Shared<kConfig>*>(dynamic_shared())).run();
}

template <int kRow>
inline constexpr int kFp32SharedBytes = sizeof(Shared<kFp32Kernels[kRow].fp32_config()>);

template <int kRow>
cudaError_t Fp32SplitKvKernel<kRow>::load() {
  static_assert(kFp32SharedBytes<kRow> <= kFp32Kernels[kRow].shared_bytes,
                "A row of the table fits the shared memory that it is for.");
  return cuda::load(fp32_split_kv_kernel<kRow>, kFp32SharedBytes<kRow>);
}

template <int kRow>
cudaError_t Fp32SplitKvKernel<kRow>::start(const Parameters& parameters, cudaStream_t stream) {
  constexpr int kThreads = kFp32Kernels[kRow].fp32_config().threads();
  const Grid grid = {std::int64_t{parameters.gangs} * parameters.gang, kThreads,
                     kFp32SharedBytes<kRow>};
  return parameters.early ? launch_early(fp32_split_kv_kernel<kRow>, grid, stream, parameters)
                          : launch(fp32_split_kv_kernel<kRow>, grid, stream, parameters);
}

}  // namespace tilewise::cuda::decode
