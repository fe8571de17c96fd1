// The kernels of an instruction set with a matrix unit: what it makes faster, which is bf16
// and fp16. The registry goes on to the instruction set's base for the rest.
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

constexpr HalfPass kBackward = {backward_workspace<float, kPanelRegisters, PairKeys<1>>,
                                run_backward<float, kPanelRegisters, PairKeys<1>>,
                                backward_traffic<float, kPanelRegisters, PairKeys<1>>};
const HalfPass& backward_of(const Problem& problem) {
  return problem.dtype == TILEWISE_FP16 ? kHalfBackward : kBackward;
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
