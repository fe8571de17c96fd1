// The default executor: a pool of threads that sleep when idle, serve several callers at once, and
// survive fork().
#pragma once

#include <tilewise/tilewise.h>

#include <cstdint>

namespace tilewise::plan {

// CPUs that this process may use: the affinity mask, cut by the cgroup's quota. At least 1.
std::int32_t usable_cpus();

class Pool {
 public:
  // `threads` counts the calling thread; at least 1. No thread starts before the first parallel_for
  // with n > 1.
  explicit Pool(std::int32_t threads) : threads_(threads) {}
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  std::int32_t threads() const { return threads_; }

  // See tilewise_executor. Items see the caller's floating-point environment. If no thread can be
  // started, the caller does all.
  void parallel_for(std::int64_t n, void (*fn)(void* context, std::int64_t item), void* context);

  tilewise_executor executor();

 private:
  struct Crew;
  Crew* crew();

  std::int32_t threads_;
  Crew* crew_ = nullptr;          // guarded by the start mutex
  std::uint64_t generation_ = 0;  // the number of forks when the crew was hired
};

// The pool behind "executor NULL". Never destroyed. nullptr if memory is short.
Pool* default_pool();

}  // namespace tilewise::plan
