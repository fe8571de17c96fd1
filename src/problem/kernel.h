// The interface of a kernel: it says which problems it supports and how much workspace it needs,
// and runs. src/plan lists the kernels in order of preference; tests and the command line iterate
// over that list.
#pragma once

#include <cstddef>

#include "problem/arena.h"
#include "problem/problem.h"
#include "problem/status.h"

namespace tilewise::problem {

// Bytes moved between memory and the working set of a tile, counted at the loads and stores of
// tiles.
struct Traffic {
  std::int64_t read_bytes = 0;
  std::int64_t written_bytes = 0;
};

struct Machine {
  const char* cpu_target;    // the forced instruction set ("avx512", "avx2", ...); nullptr: any
                             // that is available
  std::int64_t concurrency;  // work items that the executor may run at once
};

struct RunContext {
  void*
      workspace;  // at least workspace_bytes(), aligned to kWorkspaceAlignment; content is garbage
  const tilewise_executor* executor;
  std::int64_t concurrency;    // as planned; no more work items than this are in flight
  std::int64_t sram_bytes;     // size of the ladder's modelled fast memory; 0: kDefaultSramBytes
  Traffic* traffic = nullptr;  // counted if not nullptr
  // Counted if not nullptr: steps of a CPU kernel's tiles in which rows that are not finite had to
  // be kept from lanes that do not see them. It is 0 for finite inputs.
  std::int64_t* contained_steps = nullptr;
};

inline constexpr std::int64_t kDefaultSramBytes = std::int64_t{192} * 1024;

enum class Fp8Probs { kFp32, kFp16, kE4M3 };

struct Kernel {
  const char* name;
  const char* description;
  // Returns TILEWISE_OK, or TILEWISE_UNSUPPORTED with the reason as the thread's message.
  Status (*supports)(const Problem& problem, const Machine& machine);
  // Returns the bytes for the planned shapes at the planned concurrency, or -1 if they exceed
  // int64.
  std::int64_t (*workspace_bytes)(const Problem& problem, std::int64_t concurrency);
  // Runs the problem. It allocates and throws nothing, and writes every output element.
  Status (*run)(const Problem& problem, const RunContext& context);
  // Returns the closed form of the traffic that a run counts; NaN where there is none. `sram_bytes`
  // is that of RunContext.
  double (*predicted_traffic)(const Problem& problem, std::int64_t concurrency,
                              std::int64_t sram_bytes);
  // True if the instructions of the kernel read denormal operands as zero and flush denormal
  // results.
  bool flushes_denormals = false;
  // The device whose memory the kernel reads and writes, workspace included: TILEWISE_CPU or
  // TILEWISE_CUDA.
  std::int32_t device = TILEWISE_CPU;
  // Called once when a plan has chosen the kernel: loads what a run needs, so that no run has to.
  Status (*prepare)(const Problem& problem) = nullptr;
  // Returns why an automatic plan prefers a later kernel although this one supports the problem;
  // nullptr if it does not.
  const char* (*slower)(const Problem& problem, const Machine& machine) = nullptr;
  // True for a rung of the ladder, which is listed after the kernels of its device and serves for
  // comparison.
  bool is_rung = false;
  // The type to which probs are rounded where k and v are fp8 (docs/semantics.md, "Accuracy").
  Fp8Probs fp8_probs = Fp8Probs::kFp32;
};

// Calls fn(item) for the work items 0..n-1 through the executor.
template <class Function>
TILEWISE_INLINE void parallel_for(const tilewise_executor& executor, std::int64_t n,
                                  Function& function) {
  executor.parallel_for(
      executor.self, n,
      [](void* context, std::int64_t item) { (*static_cast<Function*>(context))(item); },
      &function);
}

}  // namespace tilewise::problem
