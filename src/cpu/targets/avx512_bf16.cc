// Kernels of the instruction set AVX512-BF16. It has kernels only for bf16; for other types the
// registry goes on to its base, AVX-512.
#include "cpu/avx512_bf16/backward.h"
#include "cpu/backward/traffic.h"
#include "cpu/forward/traffic.h"
#include "cpu/kernels.h"

namespace tilewise::cpu::TILEWISE_TARGET {
namespace {

using ForwardPolicy = SimdForward<Bf16Pair, kWideColumns>;
using BackwardPolicy = Avx512Bf16Backward<kWideColumns>;

std::int64_t workspace_of_forward(const Problem& problem, std::int64_t concurrency) {
  if (all_decoded(problem)) return decode_workspace<float>(problem, concurrency);
  return forward_workspace<ForwardPolicy>(problem, concurrency);
}
Status forward(const Problem& problem, const RunContext& run) {
  if (all_decoded(problem)) return run_decode<float>(problem, run);
  return run_forward<ForwardPolicy>(problem, run);
}

}  // namespace

extern const TargetKernels kKernels;
const TargetKernels kKernels = {workspace_of_forward,
                                forward,
                                backward_workspace<float, kWideColumns, BackwardPolicy>,
                                run_backward<float, kWideColumns, BackwardPolicy>,
                                forward_traffic<ForwardPolicy>,
                                backward_traffic<float, kWideColumns, BackwardPolicy>};

}  // namespace tilewise::cpu::TILEWISE_TARGET
