#include "problem/options.h"

#include <cmath>

#include "problem/checked.h"
#include "problem/tensor_checks.h"

namespace tilewise::problem {
namespace {

// The arithmetic of the kernels: double for fp64 tensors, otherwise float. Options are doubles, so
// they are limited to numbers that the kernels can hold.
struct Arithmetic {
  double most_scale;     // times log2(e) or a gradient of a score it is finite
  double least_softcap;  // a normal number
  // c * tanh(s / c) rounds to s unless |s| exceeds c * 2^-12 (double: c * 2^-26). From this cap on,
  // s / c of a common score would be denormal instead, and with the largest caps c overflows.
  double most_softcap;
};
constexpr Arithmetic kFloat = {1e30, 1e-37, 1e30};
constexpr Arithmetic kDouble = {1e300, 1e-307, 1e300};

Arithmetic arithmetic_of(const tilewise_problem& request) {
  return request.q.dtype == TILEWISE_FP64 ? kDouble : kFloat;
}

Status read_softcap(const tilewise_problem& request, Problem* problem) {
  const double cap = request.softcap;
  if (!std::isfinite(cap) || cap < 0) {
    return fail(TILEWISE_INVALID_ARGUMENT, "softcap: is %g, must be finite and >= 0 (0 is off)",
                cap);
  }
  const Arithmetic arithmetic = arithmetic_of(request);
  problem->softcap = cap;
  if (cap >= arithmetic.most_softcap) problem->softcap = 0;
  // A smaller cap makes every score 0 to the rounding of its exponential, as this one does.
  if (cap > 0 && cap < arithmetic.least_softcap) problem->softcap = arithmetic.least_softcap;
  return TILEWISE_OK;
}

Status read_score_function(const tilewise_problem& request, Problem* problem) {
  const tilewise_score_function& function = request.score_function;
  if (function.reserved != 0) {
    return fail(TILEWISE_INVALID_ARGUMENT, "score_function: reserved is %lld, must be 0",
                printable(function.reserved));
  }
  if (function.forward == nullptr &&
      (function.backward != nullptr || function.user_data != nullptr)) {
    return fail(TILEWISE_INVALID_ARGUMENT, "score_function: forward is NULL, but %s is given",
                function.backward != nullptr ? "backward" : "user_data");
  }
  const bool backward = problem->operation == Operation::kBackward;
  if (backward && function.forward != nullptr && function.backward == nullptr) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "score_function: backward is NULL, the backward pass needs it");
  }
  problem->score_function = function;
  return TILEWISE_OK;
}

}  // namespace

Status read_options(const tilewise_problem& request, Problem* problem) {
  if (request.layout != TILEWISE_BSHD && request.layout != TILEWISE_BHSD) {
    return fail(TILEWISE_INVALID_ARGUMENT, "layout: is %d, must be 0 (BSHD) or 1 (BHSD)",
                request.layout);
  }
  if (request.alignment != TILEWISE_BOTTOM_RIGHT && request.alignment != TILEWISE_TOP_LEFT) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "alignment: is %d, must be 0 (bottom-right) or 1 (top-left)", request.alignment);
  }
  const struct {
    const char* name;
    std::int32_t value;
  } flags[] = {{"causal", request.causal},
               {"deterministic", request.deterministic},
               {"batch_invariant", request.batch_invariant},
               {"accumulate", request.accumulate}};
  for (const auto& flag : flags) {
    if (flag.value != 0 && flag.value != 1) {
      return fail(TILEWISE_INVALID_ARGUMENT, "%s: is %d, must be 0 or 1", flag.name, flag.value);
    }
  }
  if (request.reserved != 0)
    return fail(TILEWISE_INVALID_ARGUMENT, "reserved: is %d, must be 0", request.reserved);
  if (request.reserved2 != 0)
    return fail(TILEWISE_INVALID_ARGUMENT, "reserved2: is %d, must be 0", request.reserved2);
  if (request.window_left < -1) {
    return fail(TILEWISE_INVALID_ARGUMENT, "window_left: is %lld, must be >= -1",
                printable(request.window_left));
  }
  if (request.window_right < -1) {
    return fail(TILEWISE_INVALID_ARGUMENT, "window_right: is %lld, must be >= -1",
                printable(request.window_right));
  }
  TILEWISE_RETURN_IF_ERROR(read_softcap(request, problem));
  TILEWISE_RETURN_IF_ERROR(read_score_function(request, problem));
  if (!(request.dropout_p >= 0 && request.dropout_p < 1)) {
    return fail(TILEWISE_INVALID_ARGUMENT, "dropout_p: is %g, must be >= 0 and < 1",
                request.dropout_p);
  }
  if (request.dropout_offset >> 32) {
    return fail(TILEWISE_INVALID_ARGUMENT, "dropout_offset: is %llu, must be < 2^32",
                static_cast<unsigned long long>(request.dropout_offset));
  }
  problem->dropout_p = request.dropout_p;
  problem->dropout_seed = request.dropout_seed;
  problem->dropout_offset = request.dropout_offset;
  problem->top_left = request.alignment == TILEWISE_TOP_LEFT;
  problem->window_left = request.window_left;
  problem->window_right = request.causal ? 0 : request.window_right;
  problem->deterministic = request.deterministic != 0;
  problem->batch_invariant = request.batch_invariant != 0;
  problem->accumulate = request.accumulate != 0;
  return TILEWISE_OK;
}

Status read_scale(const tilewise_problem& request, Problem* problem) {
  const double scale = request.softmax_scale;
  if (scale == TILEWISE_DEFAULT_SCALE) {
    problem->scale = 1.0 / std::sqrt(static_cast<double>(problem->head_dim));
    return TILEWISE_OK;
  }
  if (!std::isfinite(scale)) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "softmax_scale: is %g, must be finite (or TILEWISE_DEFAULT_SCALE)", scale);
  }
  const double most = arithmetic_of(request).most_scale;
  if (std::fabs(scale) > most) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "softmax_scale: is %g, must be from %g to %g for %s tensors", scale, -most, most,
                dtype_name(request.q.dtype));
  }
  problem->scale = scale;
  return TILEWISE_OK;
}

}  // namespace tilewise::problem
