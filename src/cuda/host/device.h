// Errors of the CUDA runtime as statuses, and the current device; for src/cuda only.
#pragma once

#include <cuda_runtime_api.h>

#include <initializer_list>

#include "cuda/host/runtime.h"

namespace tilewise::cuda {

// The status of a call of the runtime. `what` names the call in the message. Clears the error state
// of the runtime, so that the program's next call does not report the error again.
Status check(cudaError_t error, const char* what);

// Makes a device the current one of the calling thread, and restores the previous one at the end.
class CurrentDevice {
 public:
  explicit CurrentDevice(std::int32_t device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  Status status() const { return status_; }

 private:
  int previous_ = -1;
  int device_;
  Status status_;
};

// Loads kernels on a device, before they are started for the first time. `what` is that of check().
using Load = cudaError_t (*)();
Status load_kernels(std::int32_t device, std::initializer_list<Load> loads, const char* what);

inline cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace tilewise::cuda
