// The number of threads of the default pool: that of the environment, else one per usable CPU.
#pragma once

#include <cstdint>

#include "problem/status.h"

namespace tilewise::plan {

inline constexpr std::int32_t kMostThreads = 4096;

// Returns the number of CPUs that this process may use: the affinity mask, limited by the cgroup's
// quota. At least 1.
std::int32_t usable_cpus();

struct ThreadCount {
  std::int32_t threads;
  const char* variable;  // the environment variable that gives the number; nullptr if none does
};

// Reads TILEWISE_NUM_THREADS (0 means one thread per usable CPU), else the first number of
// OMP_NUM_THREADS. Returns TILEWISE_INVALID_ARGUMENT if TILEWISE_NUM_THREADS holds anything but a
// number of 0 to kMostThreads; `count` is then that of the usable CPUs. OMP_NUM_THREADS belongs to
// OpenMP, so anything but a number of 1 to kMostThreads is ignored there.
problem::Status read_thread_count(ThreadCount* count);

// Returns what read_thread_count() returns, without the cost of counting CPUs, which opens files.
problem::Status check_thread_variables();

}  // namespace tilewise::plan
