// The CUDA runtime of the emulated device.
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda/emulation/device_memory.h"
#include "cuda/emulation/launch.h"
#include "cuda/emulation/streams.h"
#include "cuda/emulation/tma.h"
#include "cuda_runtime_api.h"

namespace {

using tilewise::emulation::enqueue;
using tilewise::emulation::is_device_memory;

constexpr int kSharedBytes = 48 * 1024;  // of a block, unless a kernel asks for more
constexpr int kMaxBlocks = 2147483647;

thread_local cudaError_t last_error = cudaSuccess;
thread_local std::string last_message;

cudaError_t failed(cudaError_t error, std::string message) {
  last_error = error;
  last_message = std::move(message);
  return error;
}

// The properties in which the emulated devices differ.
struct Kind {
  const char* capability;
  int major;
  int minor;
  int shared_bytes;  // that a block may ask for
};
constexpr Kind kKinds[] = {
    {"8.0", 8, 0, 163 * 1024},
    {"8.9", 8, 9, 99 * 1024},
    {"9.0", 9, 0, 227 * 1024},
    {"10.0", 10, 0, 227 * 1024},
};

// The device that $TILEWISE_EMULATED_DEVICE names, or the first.
const Kind& kind() {
  const char* const given = std::getenv("TILEWISE_EMULATED_DEVICE");
  for (const Kind& each : kKinds) {
    if (given != nullptr && std::strcmp(given, each.capability) == 0) return each;
  }
  return kKinds[0];
}

// The shared memory that kernels have asked for.
struct Limits {
  std::mutex mutex;
  std::map<const void*, int> shared_bytes;
};
Limits& limits() {
  static Limits all;
  return all;
}

int allowed_shared_bytes(const void* kernel) {
  const std::lock_guard<std::mutex> lock(limits().mutex);
  const auto found = limits().shared_bytes.find(kernel);
  return found == limits().shared_bytes.end() ? kSharedBytes : found->second;
}

}  // namespace

namespace tilewise::emulation {

cudaError_t launch(const void* kernel, const Launch& launch) {
  if (launch.blocks < 1 || launch.blocks > kMaxBlocks)
    return failed(cudaErrorInvalidValue, std::to_string(launch.blocks) + " blocks");
  if (launch.threads < 1 || launch.threads > kMaxThreads)
    return failed(cudaErrorInvalidValue, std::to_string(launch.threads) + " threads in a block");
  const int allowed = allowed_shared_bytes(kernel);
  if (launch.shared_bytes > static_cast<std::size_t>(allowed)) {
    return failed(cudaErrorInvalidValue, std::to_string(launch.shared_bytes) +
                                             " bytes of shared memory, the kernel has asked for " +
                                             std::to_string(allowed));
  }
  const std::string wrong = run(launch);
  return wrong.empty() ? cudaSuccess : failed(cudaErrorLaunchFailure, wrong);
}

}  // namespace tilewise::emulation

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : last_message.c_str();
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device == 0) return cudaSuccess;
  return failed(cudaErrorInvalidDevice, "there is one emulated device");
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = tilewise::emulation::kMultiprocessors;
      break;
    case cudaDevAttrL2CacheSize:
      *value = 1 << 20;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = kind().major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = kind().minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kind().shared_bytes;
      break;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {"emulated on the CPU"};
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const bool known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(&tilewise::emulation::encode_tensor_map) : nullptr;
  *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t) {
  *memory = tilewise::emulation::allocate(bytes);
  if (*memory != nullptr) return cudaSuccess;
  return failed(cudaErrorMemoryAllocation, "out of memory");
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  return enqueue(stream, [memory] {
    if (tilewise::emulation::release(memory)) return cudaSuccess;
    return failed(cudaErrorInvalidValue, "what is freed was not allocated");
  });
}

// Host memory is read when the copy is started, and written before the call returns.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (!tilewise::emulation::are_late()) {
    std::memcpy(to, from, bytes);
    return cudaSuccess;
  }
  if (!is_device_memory(from, bytes)) {
    const char* const first = static_cast<const char*>(from);
    return enqueue(stream, [to, staged = std::vector<char>(first, first + bytes)] {
      std::memcpy(to, staged.data(), staged.size());
      return cudaSuccess;
    });
  }
  const cudaError_t started = enqueue(stream, [to, from, bytes] {
    std::memcpy(to, from, bytes);
    return cudaSuccess;
  });
  return is_device_memory(to, bytes) ? started : tilewise::emulation::finish_stream(stream);
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  if (!is_device_memory(memory, bytes))
    return failed(cudaErrorInvalidValue, "what is set is not memory of the device");
  return enqueue(stream, [memory, value, bytes] {
    std::memset(memory, value, bytes);
    return cudaSuccess;
  });
}

// There is one device.
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return failed(cudaErrorInvalidDevice, "there is one emulated device");
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = nullptr;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, std::size_t) {
  return cudaDeviceEnablePeerAccess(0, 0);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  void* const own = const_cast<void*>(address);
  if (is_device_memory(address, 1)) {
    *attributes = {cudaMemoryTypeDevice, 0, own, nullptr};
  } else {
    *attributes = {cudaMemoryTypeUnregistered, 0, nullptr, own};
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                std::size_t bytes, cudaStream_t stream) {
  if (to_device != 0 || from_device != 0)
    return failed(cudaErrorInvalidDevice, "there is one emulated device");
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  attributes->maxDynamicSharedSizeBytes = allowed_shared_bytes(kernel);
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  if (value > kind().shared_bytes)
    return failed(cudaErrorInvalidValue, "the device has less shared memory");
  const std::lock_guard<std::mutex> lock(limits().mutex);
  limits().shared_bytes[kernel] = value;
  return cudaSuccess;
}
