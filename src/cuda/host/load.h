// Loads kernels on the current device, before they are started for the first time.
#pragma once

#include <cuda_runtime_api.h>

namespace tilewise::cuda {

// Loads a kernel.
template <class... Arguments>
cudaError_t load(void (*kernel)(Arguments...)) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}

// Loads a kernel whose blocks have `bytes` bytes of dynamic_shared().
template <class... Arguments>
cudaError_t load(void (*kernel)(Arguments...), int bytes) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace tilewise::cuda
