#include "verify/underflow.h"

#include <algorithm>
#include <cmath>

#include "verify/tensor.h"

namespace tilewise::verify {
Underflow::Underflow(const Case& description, const tilewise_problem& request, bool flushes)
    : operation_(description.operation) {
  const bool wide = description.dtype == TILEWISE_FP64;
  smallest_normal_ = wide ? 0x1p-1022 : 0x1p-126;
  const double unit = flushes ? smallest_normal_ : wide ? 0x1p-1074 : 0x1p-149;
  const double kept = 1 / (1 - description.dropout_p);
  const double value_dim = static_cast<double>(description.value_dim);
  // Denormal values, and a denormal result, each lose at most one unit, and are multiplied by
  // probabilities whose sum is at most 1 / (1 - p). Every value of a row enters dP and delta.
  lost_ = 2 * unit * kept;
  dprobs_ = lost_ * value_dim;
  scale_ = std::isinf(description.scale) ? 1 / std::sqrt(static_cast<double>(description.head_dim))
                                         : std::abs(description.scale);
  const auto shape = score_shape(description);
  keys_ = static_cast<double>(shape[3]);
  all_rows_ = static_cast<double>(shape[0] * shape[1] * shape[2]);
  const std::int64_t group = shape[1] / std::max<std::int64_t>(1, description.kv_heads);
  rows_ = static_cast<double>(group * shape[2]);
  largest_v_ = largest_finite(numbers_of(request.v));
  if (operation_ == Operation::kForward) return;
  largest_q_ = largest_finite(numbers_of(request.q));
  largest_k_ = largest_finite(numbers_of(request.k));
  largest_dout_ = largest_finite(numbers_of(request.dout));
  weighted_ = smallest_normal_ * (2 * value_dim * largest_dout_ * largest_v_ * kept +
                                  largest_finite(numbers_of(request.dlse)));
}

double Underflow::error(tilewise_tensor tilewise_problem::*member) const {
  if (operation_ == Operation::kBackward) return gradient_error(member);
  return lost_ + keys_ * smallest_normal_ * largest_v_;
}

// Numbers of the size of 1 multiply what is lost. The probabilities of a row add up to 1, those of
// a key do not: there, the errors of independent rows add up.
double Underflow::gradient_error(tilewise_tensor tilewise_problem::*member) const {
  using P = tilewise_problem;
  const double lost = std::max(lost_, scale_ * dprobs_);
  if (member == &P::dq) return lost + keys_ * scale_ * largest_k_ * weighted_;
  const double of_key = lost * std::sqrt(std::max(1.0, rows_));
  if (member == &P::dk) return of_key + rows_ * scale_ * largest_q_ * weighted_;
  if (member == &P::dv) return of_key + rows_ * smallest_normal_ * largest_dout_;
  // dSink and dBias add dS itself; dSlope multiplies it with distances, and adds pairs.
  const bool slopes = member == &P::dalibi_slopes;
  const double distance = slopes ? std::max(keys_, rows_) : 1;
  const double sums = all_rows_ * (slopes ? keys_ : 1);
  return distance * (dprobs_ * std::sqrt(std::max(1.0, all_rows_)) + sums * weighted_);
}

}  // namespace tilewise::verify
