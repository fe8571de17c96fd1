// Inside src/cuda: errors of the runtime as statuses, and the current device.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/host/runtime.h"

namespace tilewise::cuda {

// TILEWISE_OK, or the status of a failed call of the runtime; `what` says what was tried. The
// runtime's own error state is cleared, so that the next call of the program does not report it.
Status check(cudaError_t error, const char* what);

// Makes a device the calling thread's current one and the previous one current again at the end.
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

inline cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace tilewise::cuda
