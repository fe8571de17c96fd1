// The CUDA runtime for the rest of the library and its tools: devices, memory, clocks. It includes
// no CUDA header, and a build without CUDA has it, too (absent.cc): there it finds no device.
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

// The number of devices; 0 without a driver. The driver is queried once.
std::int32_t device_count();

// Describes device `index`. TILEWISE_UNSUPPORTED, with a message, if it does not exist.
Status find_device(std::int32_t index, DeviceInfo* info);

// Allocates and releases device memory in the order of `stream` (a cudaStream_t). Does not wait for
// other streams.
Status allocate(std::int32_t device, std::int64_t bytes, void* stream, void** memory);
void release(std::int32_t device, void* memory, void* stream);

// copy() copies between memory of any two kinds and waits for the end of the copy. fill() sets
// bytes to `value`. Both run in the order of the stream.
Status copy(std::int32_t device, void* to, const void* from, std::int64_t bytes, void* stream);
Status fill(std::int32_t device, void* memory, int value, std::int64_t bytes, void* stream);
Status synchronise(std::int32_t device, void* stream);

// TILEWISE_OK if the device can read the address: its own memory, managed memory, or registered
// host memory. `name` is the tensor's, for the message.
Status check_address(std::int32_t device, const char* name, const void* address);

// Measures time on the device with two events on a stream.
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
