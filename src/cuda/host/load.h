// What is done with a kernel before it is started for the first time, on the current device.
#pragma once

#include <cuda_runtime_api.h>

namespace tilewise::cuda {

// Loads a kernel.
template <class... Given>
cudaError_t load(void (*kernel)(Given...)) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}

// Loads a kernel whose blocks have `bytes` of shared memory behind dynamic_shared().
template <class... Given>
cudaError_t load(void (*kernel)(Given...), int bytes) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace tilewise::cuda
