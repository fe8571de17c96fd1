// Quantisation on the CPU: the functions that every instruction set provides, and the choice of
// one.
#pragma once

#include "problem/kernel.h"
#include "problem/quantisation.h"

namespace tilewise::cpu {

struct TargetQuantise {
  std::int64_t (*workspace_bytes)(const problem::Quantisation& task, std::int64_t concurrency);
  // Allocates nothing; writes every element of output, and every scale that is not fixed.
  void (*run)(const problem::Quantisation& task, const problem::RunContext& context);
};

// Returns the functions of the best instruction set of this machine, or of `cpu_target` if it is
// not nullptr; the result is the same.
const TargetQuantise& quantise_for(const char* cpu_target);

}  // namespace tilewise::cpu
