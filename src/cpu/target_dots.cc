// The kernels of an instruction set with products of bf16 pairs: bf16, and nothing else. The
// registry goes on to the instruction set's base for the rest.
#include "cpu/dot_gradient.h"
#include "cpu/kernels.h"
#include "cpu/traffic.h"

namespace tilewise::cpu::TILEWISE_TARGET {
namespace {

using Body = WideBody<Pair, kWideColumns>;
using Keys = DotKeys<kWideColumns>;

std::int64_t workspace_of_forward(const Problem& problem, std::int64_t concurrency) {
  if (all_decoded(problem)) return decode_workspace<float>(problem, concurrency);
  return forward_workspace<Body>(problem, concurrency);
}
Status forward(const Problem& problem, const RunContext& run) {
  if (all_decoded(problem)) return run_decode<float>(problem, run);
  return run_forward<Body>(problem, run);
}

}  // namespace

extern const TargetKernels kKernels;
const TargetKernels kKernels = {workspace_of_forward,
                                forward,
                                backward_workspace<float, kWideColumns, Keys>,
                                run_backward<float, kWideColumns, Keys>,
                                forward_traffic<Body>,
                                backward_traffic<float, kWideColumns, Keys>};

}  // namespace tilewise::cpu::TILEWISE_TARGET
