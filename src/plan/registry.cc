#include "plan/registry.h"

#include <cstring>

#include "cpu/kernels.h"
#include "cuda/kernels.h"
#include "reference/kernels.h"

namespace tilewise::plan {
namespace {

using problem::Kernel;

// Kernels are in order of preference; the last one of a device supports everything there.
const Kernel* const kForwardKernels[] = {
#if defined(TILEWISE_HAS_CUDA)
    &cuda::kForwardDecode,
    &cuda::kForwardSm90,
    &cuda::kForwardSm80,
    &cuda::kForwardFp32,
    &cuda::kForwardFlash1,
    &cuda::kForwardStandard,
    &cuda::kForwardReference,
#endif
#if defined(__x86_64__)
    &cpu::kForwardAmx,
    &cpu::kForwardAvx512Bf16,
    &cpu::kForwardAvx512,
    &cpu::kForwardAvx2,
    &cpu::kForwardBaseline,
#elif defined(__aarch64__)
    &cpu::kForwardNeon,
#else
    &cpu::kForwardGeneric,
#endif
    &reference::kFlash2Forward,
    &reference::kFlashDecodingForward,
    &reference::kFlashDecodingPpForward,
    &reference::kFlash1Forward,
    &reference::kOnlineSoftmaxForward,
    &reference::kThreePassForward,
};
const Kernel* const kBackwardKernels[] = {
#if defined(TILEWISE_HAS_CUDA)
    &cuda::kBackwardSm90,
    &cuda::kBackwardSm80,
    &cuda::kBackwardFp32,
    &cuda::kBackwardFlash1,
    &cuda::kBackwardStandard,
    &cuda::kBackwardReference,
#endif
#if defined(__x86_64__)
    &cpu::kBackwardAmx,
    &cpu::kBackwardAvx512Bf16,
    &cpu::kBackwardAvx512,
    &cpu::kBackwardAvx2,
    &cpu::kBackwardBaseline,
#elif defined(__aarch64__)
    &cpu::kBackwardNeon,
#else
    &cpu::kBackwardGeneric,
#endif
    &reference::kFlash2Backward,
    &reference::kFlash1Backward,
    &reference::kOnlineSoftmaxBackward,
    &reference::kThreePassBackward,
};

}  // namespace

std::span<const Kernel* const> kernels(problem::Operation operation) {
  if (operation == problem::Operation::kForward) return kForwardKernels;
  return kBackwardKernels;
}

const Kernel* find_kernel(problem::Operation operation, const char* name) {
  for (const Kernel* kernel : kernels(operation)) {
    if (std::strcmp(kernel->name, name) == 0) return kernel;
  }
  return nullptr;
}

}  // namespace tilewise::plan
