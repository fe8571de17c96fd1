// The default executor: a pool of threads that sleep when idle, serve several callers at once,
// survive fork(), and end when the library is unloaded.
#pragma once

#include <tilewise/tilewise.h>

#include <cstdint>

#include "problem/status.h"

namespace tilewise::plan {

using problem::Status;
struct Crew;  // the threads of a pool

class Pool {
 public:
  // `threads` counts the calling thread and is at least 1. No thread starts before the first
  // parallel_for with n > 1.
  explicit Pool(std::int32_t threads) : threads_(threads) {}
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  std::int32_t threads() const { return threads_; }

  // The parallel_for of tilewise_executor. Work items run with the caller's floating-point
  // environment. If no thread can be started, the caller runs all of them.
  void parallel_for(std::int64_t n, void (*fn)(void* context, std::int64_t item), void* context);

  tilewise_executor executor();

 private:
  Crew* begin_call();

  std::int32_t threads_;
  Crew* crew_ = nullptr;          // guarded by the start mutex
  std::uint64_t generation_ = 0;  // the number of forks when the crew was created
};

// Returns the pool that is used for "executor NULL". Its size is that of read_thread_count() at the
// first call. It is never destroyed.
Pool* default_pool();

// Ends the threads of every pool. They start again with the pool's next parallel_for. Pools that
// another thread uses at the moment keep their threads, which is an error.
Status stop_pools();

}  // namespace tilewise::plan
