// The CUDA runtime of a build without CUDA: there is no device, and every call says so.
#include <cmath>

#include "cuda/host/runtime.h"

namespace tilewise::cuda {
namespace {

Status refuse() {
  return problem::fail(TILEWISE_UNSUPPORTED, "cuda: this build has kernels for the cpu only");
}

}  // namespace

std::int32_t device_count() { return 0; }
Status find_device(std::int32_t, DeviceInfo*) { return refuse(); }
Status allocate(std::int32_t, std::int64_t, void*, void**) { return refuse(); }
void release(std::int32_t, void*, void*) {}
Status copy(std::int32_t, void*, const void*, std::int64_t, void*) { return refuse(); }
Status fill(std::int32_t, void*, int, std::int64_t, void*) { return refuse(); }
Status synchronise(std::int32_t, void*) { return refuse(); }
Status check_address(std::int32_t, const char*, const void*) { return refuse(); }

Stopwatch::Stopwatch(std::int32_t device, void* stream) : device_(device), stream_(stream) {}
Stopwatch::~Stopwatch() = default;
void Stopwatch::start() {}
double Stopwatch::stop() {
  static_cast<void>(device_);
  static_cast<void>(stream_);
  static_cast<void>(events_);
  return std::nan("");
}

}  // namespace tilewise::cuda
