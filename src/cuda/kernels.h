// The CUDA kernels as rows of the registry.
#pragma once

#include "problem/kernel.h"

namespace tilewise::cuda {

#if defined(TILEWISE_HAS_CUDA)
extern const problem::Kernel kForwardDecode;
extern const problem::Kernel kForwardSm90;
extern const problem::Kernel kForwardSm80;
extern const problem::Kernel kForwardFp32;
extern const problem::Kernel kForwardFlash1;
extern const problem::Kernel kForwardStandard;
extern const problem::Kernel kForwardReference;

extern const problem::Kernel kBackwardSm90;
extern const problem::Kernel kBackwardSm80;
extern const problem::Kernel kBackwardFp32;
extern const problem::Kernel kBackwardFlash1;
extern const problem::Kernel kBackwardStandard;
extern const problem::Kernel kBackwardReference;
#endif

}  // namespace tilewise::cuda
