#include "cuda/host/runtime.h"

#include <cmath>

#include "cuda/host/device.h"

namespace tilewise::cuda {

Status allocate(std::int32_t device, std::int64_t bytes, void* stream, void** memory) {
  *memory = nullptr;
  if (bytes <= 0) return TILEWISE_OK;
  const CurrentDevice current(device);
  if (current.status() != TILEWISE_OK) return current.status();
  return check(cudaMallocAsync(memory, static_cast<std::size_t>(bytes), stream_of(stream)),
               "allocating device memory");
}

void release(std::int32_t device, void* memory, void* stream) {
  if (memory == nullptr) return;
  const CurrentDevice current(device);
  if (cudaFreeAsync(memory, stream_of(stream)) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
  }
}

Status copy(std::int32_t device, void* to, const void* from, std::int64_t bytes, void* stream) {
  if (bytes <= 0) return TILEWISE_OK;
  const CurrentDevice current(device);
  if (current.status() != TILEWISE_OK) return current.status();
  const cudaError_t error = cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes),
                                            cudaMemcpyDefault, stream_of(stream));
  if (error != cudaSuccess) return check(error, "copying");
  return check(cudaStreamSynchronize(stream_of(stream)), "copying");
}

Status fill(std::int32_t device, void* memory, int value, std::int64_t bytes, void* stream) {
  if (bytes <= 0) return TILEWISE_OK;
  const CurrentDevice current(device);
  if (current.status() != TILEWISE_OK) return current.status();
  return check(cudaMemsetAsync(memory, value, static_cast<std::size_t>(bytes), stream_of(stream)),
               "filling");
}

Status synchronise(std::int32_t device, void* stream) {
  const CurrentDevice current(device);
  if (current.status() != TILEWISE_OK) return current.status();
  return check(cudaStreamSynchronize(stream_of(stream)), "waiting for the stream");
}

Status check_address(std::int32_t device, const char* name, const void* address) {
  if (address == nullptr) return TILEWISE_OK;
  const CurrentDevice current(device);  // devicePointer of pinned memory is that of this device
  if (current.status() != TILEWISE_OK) return current.status();
  cudaPointerAttributes attributes = {};
  const Status status =
      check(cudaPointerGetAttributes(&attributes, address), "asking what an address is");
  if (status != TILEWISE_OK) return status;
  // Memory of another device that this one cannot reach has no devicePointer either.
  if (attributes.type != cudaMemoryTypeDevice && attributes.devicePointer == nullptr) {
    return problem::fail(
        TILEWISE_INVALID_ARGUMENT,
        "%s: %p is not memory of a CUDA device, but the tensor's device is cuda:%d", name, address,
        device);
  }
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != device) {
    return problem::fail(TILEWISE_INVALID_ARGUMENT,
                         "%s: %p is memory of cuda:%d, but the tensor's device is cuda:%d", name,
                         address, attributes.device, device);
  }
  return TILEWISE_OK;
}

Stopwatch::Stopwatch(std::int32_t device, void* stream) : device_(device), stream_(stream) {
  const CurrentDevice current(device_);
  for (void*& event : events_) {
    cudaEvent_t created = nullptr;
    if (cudaEventCreate(&created) == cudaSuccess) event = created;
  }
}

Stopwatch::~Stopwatch() {
  for (void* const event : events_) {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(static_cast<cudaEvent_t>(event)));
  }
}

void Stopwatch::start() {
  const CurrentDevice current(device_);
  static_cast<void>(cudaEventRecord(static_cast<cudaEvent_t>(events_[0]), stream_of(stream_)));
}

double Stopwatch::stop() {
  const CurrentDevice current(device_);
  const auto begin = static_cast<cudaEvent_t>(events_[0]);
  const auto end = static_cast<cudaEvent_t>(events_[1]);
  float milliseconds = 0;
  if (cudaEventRecord(end, stream_of(stream_)) != cudaSuccess ||
      cudaEventSynchronize(end) != cudaSuccess ||
      cudaEventElapsedTime(&milliseconds, begin, end) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return std::nan("");
  }
  return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace tilewise::cuda
