// The CUDA runtime of a build without CUDA: there is no device, and every call says so.
#include <cmath>

#include "cuda/fp8/quantise.h"
#include "cuda/host/runtime.h"
#include "cuda/host/streams.h"
#include "cuda/kv_cache/append.h"
#include "cuda/rows/rows.h"

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

Exchange::Exchange(std::int32_t device) : device_(device), owns_stream_(false), status_(refuse()) {}
Exchange::Exchange(const Exchange* owner) : Exchange(owner->device()) {}
Exchange::~Exchange() {
  static_cast<void>(owns_stream_);
  static_cast<void>(begun_);
  static_cast<void>(ended_);
}
Status Exchange::begin(void*) { return status_; }
Status Exchange::lead(void*) { return status_; }
Status Exchange::end() { return status_; }
Status Exchange::wait(std::int32_t, void*) const { return status_; }
Status Exchange::follow(const Exchange&) { return status_; }
bool Exchange::has_begun() const { return false; }
bool Exchange::has_ended() const { return false; }

Status use_device(std::int32_t) { return refuse(); }
Status on_device(std::int32_t, Status (*)(void*), void*) { return refuse(); }

Status connect_devices(std::int32_t, std::int32_t) { return refuse(); }
Status copy_between(std::int32_t, void*, std::int32_t, const void*, std::int64_t, void*) {
  return refuse();
}
Status send(std::int32_t, void*, const void*, std::int64_t, void*) { return refuse(); }
Status fetch(std::int32_t, void*, const void*, std::int64_t, void*) { return refuse(); }

Status load_rows(std::int32_t) { return refuse(); }
Status fill_rows(std::int32_t, const problem::View&, const RowExtents&, double, void*) {
  return refuse();
}
Status copy_rows(std::int32_t, const problem::View&, const problem::View&, const RowExtents&,
                 void*) {
  return refuse();
}
Status add_rows(std::int32_t, const problem::View&, const problem::View&, const RowExtents&,
                void*) {
  return refuse();
}
Status append(const problem::Append&, void*) { return refuse(); }
Status quantise(const problem::Quantisation&, void*) { return refuse(); }

}  // namespace tilewise::cuda
