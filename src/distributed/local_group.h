// The in-process engine of communicators: each rank is a thread, and a message is copied once, from
// the sender's memory to the receiver's. Messages in the memory of CUDA devices are copied on a
// stream of the receiver; the ranks wait for each other only to start that.
#pragma once

#include <tilewise/tilewise_distributed.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cuda/host/streams.h"
#include "problem/status.h"

namespace tilewise::distributed {

using problem::Status;

class LocalGroup {
 public:
  explicit LocalGroup(std::int32_t size);

  // Gives every rank a device (size) and the means to copy there.
  Status use_devices(std::span<const std::int32_t> devices);

  std::int32_t size() const { return static_cast<std::int32_t>(ranks_.size()); }
  tilewise_communicator communicator(std::int32_t rank);

  Status exchange(std::int32_t number, const tilewise_exchange& request, std::int32_t* failed_rank);
  void abort(std::int32_t number);

  // An exchange in device memory. finish() waits for the other ranks.
  Status start(std::int32_t number, const tilewise_exchange& request, void* stream,
               std::int32_t* failed_rank);
  Status finish(std::int32_t number, void* stream, std::int32_t* failed_rank);

 private:
  using Time = std::chrono::steady_clock::time_point;
  enum class Message : char { kOpen, kCopying, kDone };

  // A rank, and the exchange that it is in.
  struct Rank {
    LocalGroup* group = nullptr;
    std::int32_t number = 0;
    const tilewise_exchange* request = nullptr;  // nullptr: it is in none
    std::vector<Message> sends;                  // by their number in the request
    std::vector<Message> receives;
    std::int64_t open = 0;     // messages that are not done
    std::int64_t copying = 0;  // messages whose memory is in use
    std::condition_variable changed;
    std::unique_ptr<cuda::Exchange> device;      // of a group for devices
    const tilewise_exchange* started = nullptr;  // in device memory
  };
  // A send and the receive that takes it.
  struct Pair {
    Rank* sender = nullptr;
    Rank* receiver = nullptr;
    std::size_t send = 0;
    std::size_t receive = 0;
  };

  bool find_pair(Rank& rank, Pair* pair);
  bool pair_up(Rank& sender, std::size_t send, Rank& receiver, Pair* pair);
  void copy(const Pair& pair, std::unique_lock<std::mutex>& lock);
  Status start_copy(const Pair& pair, const tilewise_message& source,
                    const tilewise_message& target) const;
  void wait(Rank& rank, double timeout_seconds, std::unique_lock<std::mutex>& lock);
  std::int32_t silent_rank(const Rank& waiting) const;
  void fail_all(std::int32_t failed_rank, Status reason);
  Status failure(const Rank& rank, bool timed_out, std::int32_t* failed_rank) const;

  std::mutex mutex_;  // guards everything below
  std::vector<Rank> ranks_;
  std::int32_t failed_rank_ = -1;  // -1: the group works
  Status failure_ = TILEWISE_OK;   // why it does not
};

}  // namespace tilewise::distributed
