// Kernels of the instruction set AMX. It has kernels only for bf16 and fp16, which it makes faster;
// for other types the registry goes on to its base, AVX-512.
#include "cpu/amx/backward.h"
#include "cpu/amx/forward.h"
#include "cpu/backward/traffic.h"
#include "cpu/forward/traffic.h"
#include "cpu/kernels.h"
#include "cpu/targets/amx_fp16.h"

namespace tilewise::cpu::TILEWISE_TARGET {
namespace {

std::int64_t workspace_of_forward(const Problem& problem, std::int64_t concurrency) {
  if (all_decoded(problem)) return decode_workspace<float>(problem, concurrency);
  if (problem.dtype == TILEWISE_FP16) return kFp16Forward.workspace(problem, concurrency);
  return forward_workspace<AmxForward<1>>(problem, concurrency);
}
Status forward(const Problem& problem, const RunContext& run) {
  if (all_decoded(problem)) return run_decode<float>(problem, run);
  if (problem.dtype == TILEWISE_FP16) return kFp16Forward.run(problem, run);
  return run_forward<AmxForward<1>>(problem, run);
}
double traffic_of_forward(const Problem& problem, std::int64_t concurrency) {
  if (problem.dtype == TILEWISE_FP16) return kFp16Forward.traffic(problem, concurrency);
  return forward_traffic<AmxForward<1>>(problem, concurrency);
}

constexpr Fp16Pass kBackward = {backward_workspace<float, kPanelRegisters, AmxBackward<1>>,
                                run_backward<float, kPanelRegisters, AmxBackward<1>>,
                                backward_traffic<float, kPanelRegisters, AmxBackward<1>>};
const Fp16Pass& backward_of(const Problem& problem) {
  return problem.dtype == TILEWISE_FP16 ? kFp16Backward : kBackward;
}
std::int64_t workspace_of_backward(const Problem& problem, std::int64_t concurrency) {
  return backward_of(problem).workspace(problem, concurrency);
}
Status backward(const Problem& problem, const RunContext& run) {
  return backward_of(problem).run(problem, run);
}
double traffic_of_backward(const Problem& problem, std::int64_t concurrency) {
  return backward_of(problem).traffic(problem, concurrency);
}

}  // namespace

extern const TargetKernels kKernels;
const TargetKernels kKernels = {workspace_of_forward,  forward,
                                workspace_of_backward, backward,
                                traffic_of_forward,    traffic_of_backward};

}  // namespace tilewise::cpu::TILEWISE_TARGET
