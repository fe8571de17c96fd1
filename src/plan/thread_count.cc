#include "plan/thread_count.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace tilewise::plan {
namespace {

// Returns quota / period of a cgroup file that holds "quota period" (v2), or 0 if there is none.
double cgroup_quota() {
  long long quota = -1;
  long long period = 0;
  if (std::FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r")) {
    if (std::fscanf(file, "%lld %lld", &quota, &period) != 2) quota = -1;
    std::fclose(file);
  } else {
    std::FILE* quota_file = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "r");
    std::FILE* period_file = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "r");
    if (quota_file && std::fscanf(quota_file, "%lld", &quota) != 1) quota = -1;
    if (period_file && std::fscanf(period_file, "%lld", &period) != 1) period = 0;
    if (quota_file) std::fclose(quota_file);
    if (period_file) std::fclose(period_file);
  }
  return quota > 0 && period > 0 ? static_cast<double>(quota) / static_cast<double>(period) : 0;
}

// Reads the number at the start of `text`; returns what follows it and any blanks, or nullptr if
// there is no number of `least` to kMostThreads.
const char* read_number(const char* text, long least, std::int32_t* number) {
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(text, &end, 10);
  if (end == text || errno != 0 || value < least || value > kMostThreads) return nullptr;
  while (*end == ' ' || *end == '\t') ++end;
  *number = static_cast<std::int32_t>(value);
  return end;
}

// Reads the environment variables; a count of 0 stands for the usable CPUs.
problem::Status read_variables(ThreadCount* count) {
  *count = {0, nullptr};
  const char* text = std::getenv("TILEWISE_NUM_THREADS");
  if (text != nullptr && text[0] != '\0') {
    const char* const rest = read_number(text, 0, &count->threads);
    if (rest == nullptr || *rest != '\0') {
      count->threads = 0;
      return problem::fail(TILEWISE_INVALID_ARGUMENT,
                           "TILEWISE_NUM_THREADS: is \"%.32s\", must be 0 (all) to %d", text,
                           kMostThreads);
    }
    count->variable = "TILEWISE_NUM_THREADS";
    return TILEWISE_OK;
  }
  text = std::getenv("OMP_NUM_THREADS");
  std::int32_t number = 0;
  const char* const rest = text != nullptr ? read_number(text, 1, &number) : nullptr;
  if (rest != nullptr && (*rest == '\0' || *rest == ',')) *count = {number, "OMP_NUM_THREADS"};
  return TILEWISE_OK;
}

}  // namespace

std::int32_t usable_cpus() {
  std::int32_t cpus = static_cast<std::int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  cpu_set_t affinity;
  if (sched_getaffinity(0, sizeof(affinity), &affinity) == 0)
    cpus = std::max(1, CPU_COUNT(&affinity));
  const double quota = cgroup_quota();
  if (quota > 0 && quota < cpus) cpus = std::max(1, static_cast<std::int32_t>(quota + 0.999));
  return cpus;
}

problem::Status check_thread_variables() {
  ThreadCount count;
  return read_variables(&count);
}

problem::Status read_thread_count(ThreadCount* count) {
  const problem::Status status = read_variables(count);
  if (count->threads == 0) count->threads = usable_cpus();
  return status;
}

}  // namespace tilewise::plan
