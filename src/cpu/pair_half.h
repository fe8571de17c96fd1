// fp16 on the matrix unit, forward: in a file of its own (target_half.cc), so that either compiles
// in reasonable time.
#pragma once

#include "problem/kernel.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// As in TargetKernels; for problems that are not all decoded.
struct HalfForward {
  std::int64_t (*workspace)(const problem::Problem& problem, std::int64_t concurrency);
  problem::Status (*run)(const problem::Problem& problem, const problem::RunContext& context);
  double (*traffic)(const problem::Problem& problem, std::int64_t concurrency);
};
extern const HalfForward kHalfForward;

}  // namespace tilewise::cpu::TILEWISE_TARGET
