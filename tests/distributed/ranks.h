// Ranks as threads, and communicators that count, delay or disturb what goes through them.
#pragma once

#include <gtest/gtest.h>
#include <tilewise/tilewise_distributed.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "distributed/local_group.h"
#include "problem/status.h"
#include "verify/random.h"

namespace tilewise::tests {

using problem::Status;

// Calls function(rank) for every rank, each on a thread of its own, and returns when all have
// ended.
template <class Function>
void run_ranks(std::int32_t size, Function function) {
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < size; ++rank)
    threads.emplace_back([&function, rank] { function(rank); });
  for (std::thread& thread : threads) thread.join();
}

// The status of a rank with its message.
struct Outcome {
  Status status = TILEWISE_OK;
  std::string message;
};
inline Outcome outcome_of(Status status) {
  return {status, status == TILEWISE_OK ? "" : problem::message()};
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Stands between a rank and its communicator.
class Wrapper {
 public:
  explicit Wrapper(const tilewise_communicator& inner) : inner_(inner) {}
  virtual ~Wrapper() = default;

  tilewise_communicator communicator() {
    tilewise_communicator outer = inner_;
    outer.self = this;
    outer.exchange = [](void* self, const tilewise_exchange* request, std::int32_t* failed_rank) {
      return static_cast<Wrapper*>(self)->exchange(*request, failed_rank);
    };
    outer.abort = [](void* self) {
      Wrapper* const wrapper = static_cast<Wrapper*>(self);
      wrapper->inner_.abort(wrapper->inner_.self);
    };
    return outer;
  }

 protected:
  virtual Status exchange(const tilewise_exchange& request, std::int32_t* failed_rank) {
    return inner_.exchange(inner_.self, &request, failed_rank);
  }

 private:
  tilewise_communicator inner_;
};

// Counts what a rank sends and receives.
class Counter : public Wrapper {
 public:
  using Wrapper::Wrapper;

  struct Count {
    std::int64_t messages = 0;
    std::int64_t bytes = 0;
  };
  Count sent;
  Count received;
  std::int64_t exchanges = 0;
  std::vector<std::int32_t> targets;  // of the messages that were sent

 protected:
  Status exchange(const tilewise_exchange& request, std::int32_t* failed_rank) override {
    ++exchanges;
    for (std::int32_t m = 0; m < request.send_count; ++m) {
      ++sent.messages;
      sent.bytes += request.sends[m].bytes;
      targets.push_back(request.sends[m].peer);
    }
    for (std::int32_t m = 0; m < request.receive_count; ++m) {
      ++received.messages;
      received.bytes += request.receives[m].bytes;
    }
    return Wrapper::exchange(request, failed_rank);
  }
};

// Delays every exchange by a random time, and passes its messages in a random order.
class Shuffler : public Wrapper {
 public:
  Shuffler(const tilewise_communicator& inner, std::uint64_t seed)
      : Wrapper(inner), random_(seed) {}

 protected:
  Status exchange(const tilewise_exchange& request, std::int32_t* failed_rank) override {
    std::this_thread::sleep_for(std::chrono::microseconds(random_.between(0, 2000)));
    const std::vector<tilewise_message> sends = shuffled(request.sends, request.send_count);
    const std::vector<tilewise_message> receives =
        shuffled(request.receives, request.receive_count);
    tilewise_exchange other = request;
    other.sends = sends.data();
    other.receives = receives.data();
    return Wrapper::exchange(other, failed_rank);
  }

 private:
  std::vector<tilewise_message> shuffled(const tilewise_message* messages, std::int32_t count) {
    std::vector<tilewise_message> list(messages, messages + count);
    for (std::size_t i = list.size(); i > 1; --i) {
      const auto other = static_cast<std::size_t>(random_.between(0, static_cast<int>(i) - 1));
      std::swap(list[i - 1], list[other]);
    }
    return list;
  }

  verify::Random random_;
};

}  // namespace tilewise::tests
