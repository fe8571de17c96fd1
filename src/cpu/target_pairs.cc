// The kernels of an instruction set with a matrix unit: what it makes faster, which is bf16,
// and fp16 forward. The registry goes on to the instruction set's base for the rest.
#include "cpu/kernels.h"
#include "cpu/pair_backward.h"
#include "cpu/traffic.h"

namespace tilewise::cpu::TILEWISE_TARGET {
namespace {

// Calls f(Body{}) for the body of the input type.
template <class Function>
TILEWISE_INLINE auto with_forward_body(const Problem& problem, Function f) {
  if (problem.dtype == TILEWISE_FP16) return f(PairBody<2>{});
  return f(PairBody<1>{});
}

std::int64_t workspace_of_forward(const Problem& problem, std::int64_t concurrency) {
  if (all_decoded(problem)) return decode_workspace<float>(problem, concurrency);
  return with_forward_body(
      problem, [&](auto body) { return forward_workspace<decltype(body)>(problem, concurrency); });
}
Status forward(const Problem& problem, const RunContext& run) {
  if (all_decoded(problem)) return run_decode<float>(problem, run);
  return with_forward_body(problem,
                           [&](auto body) { return run_forward<decltype(body)>(problem, run); });
}
double traffic_of_forward(const Problem& problem, std::int64_t concurrency) {
  return with_forward_body(
      problem, [&](auto body) { return forward_traffic<decltype(body)>(problem, concurrency); });
}
std::int64_t workspace_of_backward(const Problem& problem, std::int64_t concurrency) {
  return backward_workspace<float, kPanelRegisters, PairKeys>(problem, concurrency);
}
Status backward(const Problem& problem, const RunContext& run) {
  return run_backward<float, kPanelRegisters, PairKeys>(problem, run);
}
double traffic_of_backward(const Problem& problem, std::int64_t concurrency) {
  return backward_traffic<float, kPanelRegisters, PairKeys>(problem, concurrency);
}

}  // namespace

extern const TargetKernels kKernels;
const TargetKernels kKernels = {workspace_of_forward,  forward,
                                workspace_of_backward, backward,
                                traffic_of_forward,    traffic_of_backward};

}  // namespace tilewise::cpu::TILEWISE_TARGET
