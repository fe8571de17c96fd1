// Kernels in plain SIMD, for fp64, fp32, bf16 and fp16. The file is compiled once for each
// instruction set (avx512, avx2, baseline, neon, generic), with TILEWISE_TARGET and the flags of
// src/cpu/CMakeLists.txt.
#include "cpu/backward/traffic.h"
#include "cpu/forward/traffic.h"
#include "cpu/kernels.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {
namespace {

// Calls function<T, kColumns>, where T is the arithmetic type of the dtype. Panels are one register
// wide for short problems, and kWideColumns registers for others. `lanes` is the length of the
// dimension along the lanes.
#define TILEWISE_CALL(function, problem, lanes, ...)                                               \
  ((problem).dtype == TILEWISE_FP64                                                                \
       ? ((lanes) <= Vec<double>::kLanes ? function<double, 1>((problem), __VA_ARGS__)             \
                                         : function<double, kWideColumns>((problem), __VA_ARGS__)) \
       : ((lanes) <= Vec<float>::kLanes ? function<float, 1>((problem), __VA_ARGS__)               \
                                        : function<float, kWideColumns>((problem), __VA_ARGS__)))

// Calls f(Policy{}) with the policy of the problem's arithmetic type. Problems of few queries are
// decoded and do not come here.
template <class Function>
TILEWISE_INLINE auto with_forward_policy(const Problem& problem, Function f) {
  if (problem.dtype == TILEWISE_FP64) return f(SimdForward<double, kWideColumns>{});
  return f(SimdForward<float, kWideColumns>{});
}

std::int64_t workspace_of_forward(const Problem& problem, std::int64_t concurrency) {
  if (all_decoded(problem)) {
    return problem.dtype == TILEWISE_FP64 ? decode_workspace<double>(problem, concurrency)
                                          : decode_workspace<float>(problem, concurrency);
  }
  return with_forward_policy(problem, [&](auto policy) {
    return forward_workspace<decltype(policy)>(problem, concurrency);
  });
}
Status forward(const Problem& problem, const RunContext& run) {
  if (all_decoded(problem)) {
    return problem.dtype == TILEWISE_FP64 ? run_decode<double>(problem, run)
                                          : run_decode<float>(problem, run);
  }
  return with_forward_policy(
      problem, [&](auto policy) { return run_forward<decltype(policy)>(problem, run); });
}
std::int64_t workspace_of_backward(const Problem& problem, std::int64_t concurrency) {
  return TILEWISE_CALL(backward_workspace, problem, math::max(problem.max_q, problem.max_k),
                       concurrency);
}
Status backward(const Problem& problem, const RunContext& run) {
  return TILEWISE_CALL(run_backward, problem, math::max(problem.max_q, problem.max_k), run);
}

double traffic_of_forward(const Problem& problem, std::int64_t concurrency) {
  return with_forward_policy(problem, [&](auto policy) {
    return forward_traffic<decltype(policy)>(problem, concurrency);
  });
}
double traffic_of_backward(const Problem& problem, std::int64_t concurrency) {
  return TILEWISE_CALL(backward_traffic, problem, math::max(problem.max_q, problem.max_k),
                       concurrency);
}

#undef TILEWISE_CALL

}  // namespace

extern const TargetKernels kKernels;
const TargetKernels kKernels = {workspace_of_forward,  forward,
                                workspace_of_backward, backward,
                                traffic_of_forward,    traffic_of_backward};

}  // namespace tilewise::cpu::TILEWISE_TARGET
