// What a back end gives: a kernel that says what it can do, how much workspace it wants, and runs.
// src/plan lists kernels in order of preference; tests and the command line iterate that list.
#pragma once

#include <cstddef>

#include "problem/arena.h"
#include "problem/problem.h"
#include "problem/status.h"

namespace tilewise::problem {

// Bytes moved between memory and the working set of a tile, as counted by the code at its tile
// loads and stores.
struct Traffic {
  std::int64_t read_bytes = 0;
  std::int64_t written_bytes = 0;
};

struct Machine {
  const char* cpu_target;    // the instruction set that is forced ("avx512", "avx2", ...); nullptr:
                             // any that is available
  std::int64_t concurrency;  // items that the executor may run at once
};

struct RunContext {
  void*
      workspace;  // at least workspace_bytes(), aligned to kWorkspaceAlignment; content is garbage
  const tilewise_executor* executor;
  std::int64_t concurrency;    // as planned; never more items than this are in flight
  std::int64_t sram_bytes;     // of the ladder's imagined fast memory; 0: kDefaultSramBytes
  Traffic* traffic = nullptr;  // counts if set
};

inline constexpr std::int64_t kDefaultSramBytes = std::int64_t{192} * 1024;

struct Kernel {
  const char* name;
  const char* description;
  // TILEWISE_OK, or TILEWISE_UNSUPPORTED and the reason as the thread's message.
  Status (*supports)(const Problem& problem, const Machine& machine);
  // Bytes for the planned shapes at the planned concurrency, or -1 if that exceeds int64.
  std::int64_t (*workspace_bytes)(const Problem& problem, std::int64_t concurrency);
  // Allocates nothing, throws nothing. Every output element of the problem is written.
  Status (*run)(const Problem& problem, const RunContext& context);
  // The closed form of the traffic that a run counts; NaN where there is none. `sram_bytes` as in
  // RunContext.
  double (*predicted_traffic)(const Problem& problem, std::int64_t concurrency,
                              std::int64_t sram_bytes);
  // Its instructions take denormal operands for zero and give zero for denormal results.
  bool flushes_denormals = false;
  // Whose memory it reads and writes, the workspace's too: TILEWISE_CPU or TILEWISE_CUDA.
  std::int32_t device = TILEWISE_CPU;
  // Once, when a plan has chosen the kernel: loads what a run needs, so that a run need not.
  Status (*prepare)(const Problem& problem) = nullptr;
  // Why a plan that is left to choose passes it by where it is supported (nullptr: it does not).
  const char* (*slower)(const Problem& problem, const Machine& machine) = nullptr;
  // A rung of the ladder below its device's kernels: there to compare those with.
  bool is_rung = false;
};

// Calls fn(item) for item in 0..n-1 through the executor.
template <class Function>
TILEWISE_INLINE void parallel_for(const tilewise_executor& executor, std::int64_t n,
                                  Function& function) {
  executor.parallel_for(
      executor.self, n,
      [](void* context, std::int64_t item) { (*static_cast<Function*>(context))(item); },
      &function);
}

}  // namespace tilewise::problem
