#include "cuda/host/streams.h"

#include "cuda/host/device.h"

namespace tilewise::cuda {
namespace {

cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

cudaError_t make_event(void** event) {
  cudaEvent_t made = nullptr;
  const cudaError_t error = cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
  *event = made;
  return error;
}

bool is_complete(std::int32_t device, void* event) {
  const CurrentDevice current(device);
  const cudaError_t error = cudaEventQuery(event_of(event));
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return error == cudaSuccess;
}

// send() and fetch() are one call: the addresses say what is copied.
Status start_copy(std::int32_t device, void* to, const void* from, std::int64_t bytes,
                  void* stream) {
  if (bytes <= 0) return TILEWISE_OK;
  const CurrentDevice current(device);
  if (current.status() != TILEWISE_OK) return current.status();
  return check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault,
                               stream_of(stream)),
               "copying");
}

}  // namespace

Exchange::Exchange(const Exchange* owner)
    : device_(owner->device_), owns_stream_(false), stream_(owner->stream_), status_(TILEWISE_OK) {
  const CurrentDevice current(device_);
  status_ = current.status();
  if (status_ == TILEWISE_OK) status_ = check(make_event(&begun_), "creating an event");
  if (status_ == TILEWISE_OK) status_ = check(make_event(&ended_), "creating an event");
}

Exchange::Exchange(std::int32_t device)
    : device_(device), owns_stream_(true), status_(TILEWISE_OK) {
  const CurrentDevice current(device);
  status_ = current.status();
  if (status_ != TILEWISE_OK) return;
  cudaStream_t stream = nullptr;
  int lowest = 0;
  int highest = 0;
  status_ = check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "asking for priorities");
  if (status_ != TILEWISE_OK) return;
  status_ = check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest),
                  "creating a stream");
  stream_ = stream;
  if (status_ == TILEWISE_OK) status_ = check(make_event(&begun_), "creating an event");
  if (status_ == TILEWISE_OK) status_ = check(make_event(&ended_), "creating an event");
}

Exchange::~Exchange() {
  const CurrentDevice current(device_);
  if (ended_ != nullptr) static_cast<void>(cudaEventDestroy(event_of(ended_)));
  if (begun_ != nullptr) static_cast<void>(cudaEventDestroy(event_of(begun_)));
  if (owns_stream_ && stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_of(stream_)));
}

Status Exchange::begin(void* stream) {
  const CurrentDevice current(device_);
  if (current.status() != TILEWISE_OK) return current.status();
  const cudaError_t error = cudaEventRecord(event_of(begun_), stream_of(stream));
  if (error != cudaSuccess) return check(error, "recording an event");
  return check(cudaStreamWaitEvent(stream_of(stream_), event_of(begun_), 0),
               "waiting for an event");
}

Status Exchange::lead(void* stream) {
  const CurrentDevice current(device_);
  if (current.status() != TILEWISE_OK) return current.status();
  const cudaError_t error = cudaEventRecord(event_of(begun_), stream_of(stream_));
  if (error != cudaSuccess) return check(error, "recording an event");
  return check(cudaStreamWaitEvent(stream_of(stream), event_of(begun_), 0), "waiting for an event");
}

Status Exchange::end() {
  const CurrentDevice current(device_);
  if (current.status() != TILEWISE_OK) return current.status();
  return check(cudaEventRecord(event_of(ended_), stream_of(stream_)), "recording an event");
}

Status Exchange::wait(std::int32_t device, void* stream) const {
  const CurrentDevice current(device);
  if (current.status() != TILEWISE_OK) return current.status();
  return check(cudaStreamWaitEvent(stream_of(stream), event_of(ended_), 0), "waiting for an event");
}

Status Exchange::follow(const Exchange& other) {
  const CurrentDevice current(device_);
  if (current.status() != TILEWISE_OK) return current.status();
  return check(cudaStreamWaitEvent(stream_of(stream_), event_of(other.begun_), 0),
               "waiting for an event");
}

bool Exchange::has_begun() const { return is_complete(device_, begun_); }
bool Exchange::has_ended() const { return is_complete(device_, ended_); }

Status use_device(std::int32_t device) {
  return check(cudaSetDevice(device), "making a device current");
}

Status on_device(std::int32_t device, Status (*function)(void*), void* context) {
  const CurrentDevice current(device);
  return current.status() != TILEWISE_OK ? current.status() : function(context);
}

namespace {

// Gives device `peer` access to the memory of `device`.
Status give_access(std::int32_t device, std::int32_t peer) {
  int can = 0;
  const cudaError_t asked = cudaDeviceCanAccessPeer(&can, peer, device);
  if (asked != cudaSuccess || can == 0) return check(asked, "asking for peer access");
  cudaMemPool_t pool = nullptr;
  const cudaError_t found = cudaDeviceGetDefaultMemPool(&pool, device);
  if (found != cudaSuccess) return check(found, "asking for a pool of memory");
  cudaMemAccessDesc access = {};
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = peer;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  const cudaError_t shared = cudaMemPoolSetAccess(pool, &access, 1);
  if (shared != cudaSuccess) return check(shared, "sharing a pool of memory");
  const CurrentDevice current(peer);
  if (current.status() != TILEWISE_OK) return current.status();
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(device, 0);
  if (enabled != cudaErrorPeerAccessAlreadyEnabled) return check(enabled, "enabling peer access");
  static_cast<void>(cudaGetLastError());
  return TILEWISE_OK;
}

}  // namespace

Status connect_devices(std::int32_t a, std::int32_t b) {
  if (a == b) return TILEWISE_OK;
  const Status status = give_access(a, b);
  return status != TILEWISE_OK ? status : give_access(b, a);
}

Status copy_between(std::int32_t to_device, void* to, std::int32_t from_device, const void* from,
                    std::int64_t bytes, void* stream) {
  if (bytes <= 0) return TILEWISE_OK;
  if (to_device == from_device) return start_copy(to_device, to, from, bytes, stream);
  const CurrentDevice current(to_device);
  if (current.status() != TILEWISE_OK) return current.status();
  return check(cudaMemcpyPeerAsync(to, to_device, from, from_device,
                                   static_cast<std::size_t>(bytes), stream_of(stream)),
               "copying between devices");
}

Status send(std::int32_t device, void* to, const void* from, std::int64_t bytes, void* stream) {
  return start_copy(device, to, from, bytes, stream);
}

Status fetch(std::int32_t device, void* to, const void* from, std::int64_t bytes, void* stream) {
  return start_copy(device, to, from, bytes, stream);
}

}  // namespace tilewise::cuda
