// An instruction set that this build leaves out (TILEWISE_NATIVE, TILEWISE_CPU_TARGETS). Its
// kernels refuse every problem, so that none of these functions is called.
#include "cpu/kernels.h"

namespace tilewise::cpu::TILEWISE_TARGET {

extern const TargetKernels kKernels;
const TargetKernels kKernels = {};

}  // namespace tilewise::cpu::TILEWISE_TARGET
