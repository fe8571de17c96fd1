// Exchanges messages while the caller computes: by a thread, or in the order of a stream.
#pragma once

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "distributed/communicator.h"
#include "distributed/rows.h"
#include "problem/tensor_checks.h"

namespace tilewise::distributed {

class Courier {
 public:
  // Messages of a worker on a device overlap always. Without `overlaps`, or if no thread can be
  // started, other ones are exchanged in finish().
  Courier(const tilewise_communicator& communicator, bool overlaps, const Worker& worker);
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  // Exchanges the messages of a request while compute() runs, and returns when both are done: the
  // status of compute() if it fails, which ends the exchanges of all ranks, otherwise that of
  // exchange() in communicator.h, each with its message.
  template <class Compute>
  Status exchange_during(const tilewise_exchange& request, const char* activity, Compute compute) {
    TILEWISE_RETURN_IF_ERROR(start(request, activity));
    const Status computed = compute();
    if (computed == TILEWISE_OK) return finish();
    communicator_.abort(communicator_.self);
    char message[512];
    std::snprintf(message, sizeof(message), "%s", problem::message());
    finish();
    return problem::fail(computed, "%s", message);
  }

  // Starts an exchange; the request and its memory stay as they are until finish(), which waits for
  // its end, or lets the worker's stream wait.
  Status start(const tilewise_exchange& request, const char* activity);
  Status finish();

 private:
  void work();

  const tilewise_communicator& communicator_;
  const Worker& worker_;
  std::thread thread_;
  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  enum class State { kIdle, kStarted, kFinished, kEnd } state_ = State::kIdle;
  const tilewise_exchange* request_ = nullptr;
  const char* activity_ = "";
  Status status_ = TILEWISE_OK;
  char message_[512] = "";
};

}  // namespace tilewise::distributed
