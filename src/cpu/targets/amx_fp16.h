// fp16 on the matrix unit: in files of its own (target_half.cc, target_half_backward.cc), so that
// each compiles in reasonable time.
#pragma once

#include "problem/kernel.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// As in TargetKernels.
struct Fp16Pass {
  std::int64_t (*workspace)(const problem::Problem& problem, std::int64_t concurrency);
  problem::Status (*run)(const problem::Problem& problem, const problem::RunContext& context);
  double (*traffic)(const problem::Problem& problem, std::int64_t concurrency);
};
extern const Fp16Pass kFp16Forward;  // for problems that are not all decoded
extern const Fp16Pass kFp16Backward;

}  // namespace tilewise::cpu::TILEWISE_TARGET
