// fp16 on AMX. Its two passes are compiled in files of their own (amx_fp16_forward.cc,
// amx_fp16_backward.cc), so that none takes too long.
#pragma once

#include "problem/kernel.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// The functions of one pass, as in TargetKernels.
struct Fp16Pass {
  std::int64_t (*workspace)(const problem::Problem& problem, std::int64_t concurrency);
  problem::Status (*run)(const problem::Problem& problem, const problem::RunContext& context);
  double (*traffic)(const problem::Problem& problem, std::int64_t concurrency);
};
extern const Fp16Pass kFp16Forward;  // for problems that are not decoded as a whole
extern const Fp16Pass kFp16Backward;

}  // namespace tilewise::cpu::TILEWISE_TARGET
