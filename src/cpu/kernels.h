// The CPU kernels that the registry lists, and the functions that every instruction set provides
// for them.
#pragma once

#include "problem/kernel.h"

namespace tilewise::cpu {

struct TargetKernels {
  std::int64_t (*forward_workspace)(const problem::Problem& problem, std::int64_t concurrency);
  problem::Status (*forward)(const problem::Problem& problem, const problem::RunContext& context);
  std::int64_t (*backward_workspace)(const problem::Problem& problem, std::int64_t concurrency);
  problem::Status (*backward)(const problem::Problem& problem, const problem::RunContext& context);
  // Closed forms of the traffic; see problem::Kernel.
  double (*forward_traffic)(const problem::Problem& problem, std::int64_t concurrency);
  double (*backward_traffic)(const problem::Problem& problem, std::int64_t concurrency);
};

#if defined(__x86_64__)
namespace amx {
extern const TargetKernels kKernels;
}
namespace avx512_bf16 {
extern const TargetKernels kKernels;
}
namespace avx512 {
extern const TargetKernels kKernels;
}
namespace avx2 {
extern const TargetKernels kKernels;
}
namespace baseline {
extern const TargetKernels kKernels;
}
extern const problem::Kernel kForwardAmx, kForwardAvx512Bf16, kForwardAvx512, kForwardAvx2,
    kForwardBaseline;
extern const problem::Kernel kBackwardAmx, kBackwardAvx512Bf16, kBackwardAvx512, kBackwardAvx2,
    kBackwardBaseline;
#elif defined(__aarch64__)
namespace neon {
extern const TargetKernels kKernels;
}
extern const problem::Kernel kForwardNeon;
extern const problem::Kernel kBackwardNeon;
#else
namespace generic {
extern const TargetKernels kKernels;
}
extern const problem::Kernel kForwardGeneric;
extern const problem::Kernel kBackwardGeneric;
#endif

}  // namespace tilewise::cpu
