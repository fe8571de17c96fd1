// The kernels of an instruction set with a matrix unit: what it makes faster, which is bf16,
// and fp16 forward. The registry goes on to the instruction set's base for the rest.
#include "cpu/kernels.h"
#include "cpu/pair_backward.h"
#include "cpu/pair_half.h"
#include "cpu/traffic.h"

namespace tilewise::cpu::TILEWISE_TARGET {
namespace {

std::int64_t workspace_of_forward(const Problem& problem, std::int64_t concurrency) {
  if (all_decoded(problem)) return decode_workspace<float>(problem, concurrency);
  if (problem.dtype == TILEWISE_FP16) return kHalfForward.workspace(problem, concurrency);
  return forward_workspace<PairBody<1>>(problem, concurrency);
}
Status forward(const Problem& problem, const RunContext& run) {
  if (all_decoded(problem)) return run_decode<float>(problem, run);
  if (problem.dtype == TILEWISE_FP16) return kHalfForward.run(problem, run);
  return run_forward<PairBody<1>>(problem, run);
}
double traffic_of_forward(const Problem& problem, std::int64_t concurrency) {
  if (problem.dtype == TILEWISE_FP16) return kHalfForward.traffic(problem, concurrency);
  return forward_traffic<PairBody<1>>(problem, concurrency);
}

}  // namespace

extern const TargetKernels kKernels;
const TargetKernels kKernels = {workspace_of_forward,
                                forward,
                                backward_workspace<float, kPanelRegisters, PairKeys>,
                                run_backward<float, kPanelRegisters, PairKeys>,
                                traffic_of_forward,
                                backward_traffic<float, kPanelRegisters, PairKeys>};

}  // namespace tilewise::cpu::TILEWISE_TARGET
