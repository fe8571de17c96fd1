// Flash-Decoding in fp32 (decode/split_kv.cuh), with multiply-adds for products
// (decode/fp32/gemm.cuh).
#pragma once

#include "cuda/decode/split_kv.cuh"

namespace tilewise::cuda::decode {

template <int kRow>
cudaError_t Fp32SplitKvKernel<kRow>::load() {
  return load_split_kv<Fp32SplitKvKernel>();
}
template <int kRow>
cudaError_t Fp32SplitKvKernel<kRow>::start(const Parameters& parameters, cudaStream_t stream) {
  return start_split_kv<Fp32SplitKvKernel>(parameters, stream);
}

}  // namespace tilewise::cuda::decode
