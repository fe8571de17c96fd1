// Takes a request to a kernel, a workspace and a run.
#pragma once

#include <cstddef>

#include "problem/kernel.h"

namespace tilewise::plan {

struct Options {
  const char* kernel = nullptr;      // the forced kernel's name
  const char* cpu_target = nullptr;  // the forced instruction set
  std::int32_t max_concurrency = 0;  // 0: that of the default pool
};

struct Plan {
  problem::Problem problem;  // shapes and options; its pointers are unused
  const problem::Kernel* kernel = nullptr;
  std::int64_t concurrency = 1;
  std::int64_t workspace_bytes = 0;
  char reason[512] = "";  // why this kernel was chosen, and not an earlier one
};

// Returns TILEWISE_OK, or TILEWISE_UNSUPPORTED with the reason as the thread's message: the tensors
// are on another device, or the kernel gives the reason.
problem::Status supports(const problem::Kernel& kernel, const problem::Problem& problem,
                         const problem::Machine& machine);

// Chooses the first kernel of the registry that supports the request, or checks the forced one.
// Reads TILEWISE_KERNEL and TILEWISE_CPU_TARGET where `options` leaves the choice open. Reads no
// data.
problem::Status make_plan(problem::Operation operation, const tilewise_problem& request,
                          const Options& options, Plan* plan);

// Returns the first respect in which two problems need different plans, or nullptr. Pointers,
// strides, the softmax scale, the seed and the offset of dropout may differ from run to run.
const char* planned_difference(const problem::Problem& a, const problem::Problem& b);

// Checks the executor that a caller passes.
problem::Status check_executor(const tilewise_executor& executor);

struct RunOptions {
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  const tilewise_executor* executor = nullptr;  // nullptr: the default pool
  std::int64_t sram_bytes = 0;                  // see problem::RunContext
  problem::Traffic* traffic = nullptr;
  std::int64_t* contained_steps = nullptr;  // see problem::RunContext
};

// Checks the size and the alignment of a workspace; `user` needs it, in the message.
problem::Status check_workspace(const char* user, std::int64_t needed, const void* workspace,
                                std::size_t bytes);

// Runs the plan on tensors of the planned shapes. Allocates nothing.
problem::Status run_plan(const Plan& plan, const tilewise_problem& request,
                         const RunOptions& options);

// Plans, allocates, checks the contents, runs.
problem::Status run_once(problem::Operation operation, const tilewise_problem& request,
                         const tilewise_executor* executor);

// Fills in the properties of the machine that the kernels of an instruction set need. Also used by
// tilewise_kernel_supports().
problem::Status resolve_machine(const Options& options, problem::Machine* machine);

}  // namespace tilewise::plan
