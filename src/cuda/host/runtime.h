// The CUDA runtime as the rest of the library and its tools see it: devices, memory, clocks. No
// CUDA header here, and a build without CUDA has all of it too (absent.cc): then there is no
// device.
#pragma once

#include "problem/status.h"

#include <cstdint>

namespace tilewise::cuda {

using problem::Status;

struct DeviceInfo {
  std::int32_t index;
  char name[64];
  std::int32_t major;  // compute capability
  std::int32_t minor;
  std::int32_t multiprocessors;
  std::int64_t shared_bytes;  // that one block may use
  std::int64_t l2_bytes;
};

// Devices that the driver offers; 0 without a driver. Asked once.
std::int32_t device_count();

// What is known of device `index`; or TILEWISE_UNSUPPORTED and why there is none.
Status find_device(std::int32_t index, DeviceInfo* info);

// Device memory. Waits for nothing that runs on other streams than `stream` (a cudaStream_t).
Status allocate(std::int32_t device, std::int64_t bytes, void* stream, void** memory);
void release(std::int32_t device, void* memory, void* stream);

// Between memory of any two kinds, or bytes of `value`; in the order of the stream. copy() waits
// for its end.
Status copy(std::int32_t device, void* to, const void* from, std::int64_t bytes, void* stream);
Status fill(std::int32_t device, void* memory, int value, std::int64_t bytes, void* stream);
Status synchronise(std::int32_t device, void* stream);

// TILEWISE_OK if the device can read the address: its own memory, managed memory, or registered
// host memory. `name` is the tensor's, for the message.
Status check_address(std::int32_t device, const char* name, const void* address);

// Two events on a stream.
class Stopwatch {
 public:
  Stopwatch(std::int32_t device, void* stream);
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void start();
  double stop();  // seconds since start() on the device's clock; waits. NaN after an error.

 private:
  std::int32_t device_;
  void* stream_;
  void* events_[2] = {nullptr, nullptr};
};

}  // namespace tilewise::cuda
