// Streams, events and asynchronous copies of the CUDA runtime for the rest of the library. Like
// runtime.h, it includes no CUDA header, and a build without CUDA has it, too (absent.cc).
#pragma once

#include <cstdint>

#include "problem/status.h"

namespace tilewise::cuda {

using problem::Status;

// A stream and the events of an exchange of messages with the work of another stream. The stream
// has the highest priority: its kernels, if it has some, take multiprocessors before others.
class Exchange {
 public:
  explicit Exchange(std::int32_t device);
  // With the stream of another exchange, which lives longer, and events of its own.
  explicit Exchange(const Exchange* owner);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  Status status() const { return status_; }  // of the construction
  std::int32_t device() const { return device_; }
  void* stream() const { return stream_; }

  // begin(): messages come after the work of `stream` so far. end(): those so far are complete for
  // wait(), which makes later work of a stream of any device wait for them.
  Status begin(void* stream);
  Status end();
  Status wait(std::int32_t device, void* stream) const;

  // After begin(): later work of `stream`, too, comes after what it waited for, so that kernels of
  // the messages begin before work that would take all multiprocessors.
  Status lead(void* stream);

  // The messages of this exchange come after the work that another one's begin() has seen.
  Status follow(const Exchange& other);

  // Whether the work that begin() and end() have seen is complete. false after an error.
  bool has_begun() const;
  bool has_ended() const;

 private:
  std::int32_t device_;
  bool owns_stream_;
  void* stream_ = nullptr;
  void* begun_ = nullptr;
  void* ended_ = nullptr;
  Status status_;
};

// Makes a device the current one of the calling thread for good: of a thread of the library.
Status use_device(std::int32_t device);

// Calls function() while the device is the current one, and returns its status.
Status on_device(std::int32_t device, Status (*function)(void*), void* context);
template <class Function>
Status on_device(std::int32_t device, Function function) {
  return on_device(
      device, [](void* context) { return (*static_cast<Function*>(context))(); }, &function);
}

// Lets copies between two devices go directly where the machine can: otherwise they go through host
// memory. It covers memory of cudaMalloc and of the default pools of cudaMallocAsync.
Status connect_devices(std::int32_t a, std::int32_t b);

// Copies between the memories of two devices, in the order of `stream`, which is of the device that
// is copied to. Does not wait.
Status copy_between(std::int32_t to_device, void* to, std::int32_t from_device, const void* from,
                    std::int64_t bytes, void* stream);

// Copies from host memory, or to it, in the order of `stream`. send() returns when the memory may
// change; memory that fetch() writes is complete when the stream's work so far is.
Status send(std::int32_t device, void* to, const void* from, std::int64_t bytes, void* stream);
Status fetch(std::int32_t device, void* to, const void* from, std::int64_t bytes, void* stream);

}  // namespace tilewise::cuda
