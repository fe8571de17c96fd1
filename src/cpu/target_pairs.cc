// The kernels of an instruction set with a matrix unit: what it makes faster, which is bf16. The
// registry goes on to the instruction set's base for the rest.
#include "cpu/kernels.h"
#include "cpu/traffic.h"

namespace tilewise::cpu::TILEWISE_TARGET {
namespace {

std::int64_t workspace_of_forward(const Problem& problem, std::int64_t concurrency) {
  if (all_decoded(problem)) return decode_workspace<float>(problem, concurrency);
  return forward_workspace<PairBody>(problem, concurrency);
}
Status forward(const Problem& problem, const RunContext& run) {
  if (all_decoded(problem)) return run_decode<float>(problem, run);
  return run_forward<PairBody>(problem, run);
}
double traffic_of_forward(const Problem& problem, std::int64_t concurrency) {
  return forward_traffic<PairBody>(problem, concurrency);
}

}  // namespace

extern const TargetKernels kKernels;
const TargetKernels kKernels = {workspace_of_forward, forward, nullptr, nullptr,
                                traffic_of_forward,   nullptr};

}  // namespace tilewise::cpu::TILEWISE_TARGET
