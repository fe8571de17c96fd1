// The engine of communicators over NCCL: messages in the memory of CUDA devices, in the order of a
// stream of its own, and a thread that finds exchanges that do not end.
#pragma once

#include <tilewise/tilewise_distributed.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda/host/streams.h"
#include "distributed/nccl/library.h"

namespace tilewise::distributed::nccl {

class Communicator {
 public:
  // Joins the ranks that have the same id, on a device. Collective. No call of the library waits
  // for other ranks, so that it can be aborted at any time.
  static Status create(const UniqueId& id, std::int32_t size, std::int32_t rank,
                       std::int32_t device, std::unique_ptr<Communicator>* made);
  // Uses a communicator of the caller's, which is not destroyed.
  static Status wrap(Comm comm, std::unique_ptr<Communicator>* made);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  tilewise_communicator interface();

  // TILEWISE_OK unless an exchange has failed.
  Status status();

  Status exchange(const tilewise_exchange& request, std::int32_t* failed_rank);
  Status start(const tilewise_exchange& request, void* stream, std::int32_t* failed_rank);
  Status finish(void* stream, std::int32_t* failed_rank);
  void abort();

 private:
  using Time = std::chrono::steady_clock::time_point;

  // An exchange that is under way. Its time limit counts from when its messages can be sent: its
  // call has begun, and the work before it is done.
  struct Pending {
    double limit;  // seconds
    std::int32_t peer;
    bool calling;  // its call of the library has not returned
    bool timed;
    Time since;
  };

  Communicator(const Library& library, Comm comm, bool owns, std::int32_t size, std::int32_t rank,
               std::int32_t device);
  Status make_slots();
  Status open(const tilewise_exchange& request, std::int32_t* failed_rank);
  Status call(const tilewise_exchange& request, std::int32_t* failed_rank);
  Status issue(const tilewise_exchange& request);
  Status settle(Comm comm, double seconds) const;
  Status stage(const tilewise_exchange& request, char* memory, std::int32_t* failed_rank);
  Status wait_for_end(std::int32_t* failed_rank);
  Status failure(std::int32_t* failed_rank) const;
  void fail_all(Status reason, std::int32_t failed_rank, std::unique_lock<std::mutex>& lock);
  void watch();
  bool look(std::unique_lock<std::mutex>& lock);

  const Library& library_;
  const std::int32_t size_;
  const std::int32_t rank_;
  const std::int32_t device_;
  const bool owns_;
  std::vector<std::unique_ptr<cuda::Exchange>> slots_;  // one stream, and events
  std::size_t next_ = 0;                                // the slot of the next exchange
  std::vector<const tilewise_message*> order_;          // of messages to and from one peer

  std::mutex calls_;                 // held during calls of the library, and to abort it
  std::atomic<bool> failed_{false};  // ends calls

  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  Comm comm_;                     // nullptr after a failure
  std::vector<Pending> pending_;  // by their slots
  std::size_t oldest_ = 0;        // the slot of the first of them,
  std::size_t count_ = 0;         // and how many there are
  Status failure_ = TILEWISE_OK;
  std::int32_t failed_rank_ = -1;
  bool ends_ = false;
  std::thread watchdog_;
};

}  // namespace tilewise::distributed::nccl
