// Flash-Decoding on a cache of fp8 (decode/split_kv.cuh): K and V stay 8 bits wide in shared memory
// and become fp16 in registers (decode/key_operands.cuh). sm_90 and later.
#pragma once

#include "cuda/decode/split_kv.cuh"

namespace tilewise::cuda::decode {

template <int kRow, bool kE5M2>
cudaError_t Fp8SplitKvKernel<kRow, kE5M2>::load() {
  return load_split_kv<Fp8SplitKvKernel>();
}
template <int kRow, bool kE5M2>
cudaError_t Fp8SplitKvKernel<kRow, kE5M2>::start(const Parameters& parameters,
                                                 cudaStream_t stream) {
  return start_split_kv<Fp8SplitKvKernel>(parameters, stream);
}

}  // namespace tilewise::cuda::decode
