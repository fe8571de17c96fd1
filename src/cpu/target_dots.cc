// The kernels of an instruction set with products of bf16 pairs: bf16, and nothing else. The
// registry goes on to the instruction set's base for the rest.
#include "cpu/dot_gradient.h"
#include "cpu/kernels.h"
#include "cpu/traffic.h"

namespace tilewise::cpu::TILEWISE_TARGET {
namespace {

using Body = WideBody<Pair, kWideColumns>;
using Keys = WideKeys<Pair, kWideColumns>;

std::int64_t workspace_of_forward(const Problem& problem, std::int64_t concurrency) {
  if (all_decoded(problem)) return decode_workspace<float>(problem, concurrency);
  return forward_workspace<Body>(problem, concurrency);
}
Status forward(const Problem& problem, const RunContext& run) {
  if (all_decoded(problem)) return run_decode<float>(problem, run);
  return run_forward<Body>(problem, run);
}
double traffic_of_forward(const Problem& problem, std::int64_t concurrency) {
  return forward_traffic<Body>(problem, concurrency);
}
std::int64_t workspace_of_backward(const Problem& problem, std::int64_t concurrency) {
  return backward_workspace<float, kWideColumns, Keys>(problem, concurrency);
}
Status backward(const Problem& problem, const RunContext& run) {
  return run_backward<float, kWideColumns, Keys>(problem, run);
}
double traffic_of_backward(const Problem& problem, std::int64_t concurrency) {
  return backward_traffic<float, kWideColumns, Keys>(problem, concurrency);
}

}  // namespace

extern const TargetKernels kKernels;
const TargetKernels kKernels = {workspace_of_forward,  forward,
                                workspace_of_backward, backward,
                                traffic_of_forward,    traffic_of_backward};

}  // namespace tilewise::cpu::TILEWISE_TARGET
