// The default executor: a pool of threads that sleep when idle, serve several callers at once, and
// survive fork().
#pragma once

#include <tilewise/tilewise.h>

#include <cstdint>

namespace tilewise::plan {

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
  struct Crew;
  Crew* crew();

  std::int32_t threads_;
  Crew* crew_ = nullptr;          // guarded by the start mutex
  std::uint64_t generation_ = 0;  // the number of forks when the crew was created
};

// Returns the pool that is used for "executor NULL"; nullptr if memory is short. Its size is that
// of read_thread_count() at the first call. It is never destroyed.
Pool* default_pool();

}  // namespace tilewise::plan
