#include "cuda/host/device.h"

#include <cstdio>

namespace tilewise::cuda {
namespace {

constexpr int kMaxDevices = 64;

struct Devices {
  int count = 0;  // declared first: the initialiser of `error` sets it
  cudaError_t error;
  DeviceInfo infos[kMaxDevices];

  Devices() : error(cudaGetDeviceCount(&count)), infos{} {
    if (error != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      count = 0;
    }
    if (count > kMaxDevices) count = kMaxDevices;
    for (int index = 0; index < count; ++index) infos[index] = describe(index);
  }

  static int attribute(cudaDeviceAttr name, int index) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, name, index) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return 0;
    }
    return value;
  }

  static DeviceInfo describe(int index) {
    DeviceInfo info = {};
    info.index = index;
    info.major = attribute(cudaDevAttrComputeCapabilityMajor, index);
    info.minor = attribute(cudaDevAttrComputeCapabilityMinor, index);
    info.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, index);
    info.shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
    info.l2_bytes = attribute(cudaDevAttrL2CacheSize, index);
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, index) == cudaSuccess) {
      std::snprintf(info.name, sizeof(info.name), "%.63s", properties.name);
    }
    return info;
  }
};

const Devices& devices() {
  static const Devices found;
  return found;
}

}  // namespace

Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return TILEWISE_OK;
  static_cast<void>(cudaGetLastError());
  const Status status =
      error == cudaErrorMemoryAllocation ? TILEWISE_NO_MEMORY : TILEWISE_DEVICE_ERROR;
  return problem::fail(status, "cuda: %s: %s", what, cudaGetErrorString(error));
}

CurrentDevice::CurrentDevice(std::int32_t device) : device_(device), status_(TILEWISE_OK) {
  status_ = check(cudaGetDevice(&previous_), "asking for the current device");
  if (status_ == TILEWISE_OK && previous_ != device_) {
    status_ = check(cudaSetDevice(device_), "making the tensors' device current");
  }
}

CurrentDevice::~CurrentDevice() {
  if (previous_ >= 0 && previous_ != device_) static_cast<void>(cudaSetDevice(previous_));
}

Status load_kernels(std::int32_t device, std::initializer_list<Load> loads, const char* what) {
  const CurrentDevice current(device);
  if (current.status() != TILEWISE_OK) return current.status();
  for (const Load load : loads) {
    const Status loaded = check(load(), what);
    if (loaded != TILEWISE_OK) return loaded;
  }
  return TILEWISE_OK;
}

std::int32_t device_count() { return devices().count; }

Status find_device(std::int32_t index, DeviceInfo* info) {
  const Devices& found = devices();
  if (found.error != cudaSuccess) {
    return problem::fail(TILEWISE_UNSUPPORTED, "cuda: no device: %s",
                         cudaGetErrorString(found.error));
  }
  if (index < 0 || index >= found.count) {
    return problem::fail(TILEWISE_UNSUPPORTED, "cuda: device %d was asked for, there are %d", index,
                         found.count);
  }
  *info = found.infos[index];
  return TILEWISE_OK;
}

}  // namespace tilewise::cuda
