// The accuracy rule of the semantics (docs/semantics.md, "Accuracy").
#pragma once

#include <string>
#include <vector>

#include "problem/problem.h"

namespace tilewise::verify {

// One tensor of results against the fp64 oracle.
struct TensorReport {
  const char* name = "";
  std::int64_t count = 0;
  double max_error = 0;    // max |result - oracle|
  double plain_error = 0;  // the same for plain attention
  double limit = 0;        // of max_error
  double rms_error = 0;
  double mean_error = 0;    // signed
  double shrink_error = 0;  // mean of the error towards zero: sign(oracle) * (oracle - result)
  std::int64_t worst = -1;  // row-major number of the element with the largest error
  bool passed = true;
  bool only_biased = false;  // failed by a mean alone
  std::string reason;        // why not, with the numbers

  // max_error / limit; 0 if both are 0. At most 1 in a tensor that passed.
  double ratio() const;
};

// Plain attention's largest error in one tensor, on other inputs of the same distribution.
struct PlainError {
  const char* name;
  double max_error;
};

struct AccuracyOptions {
  // Errors of different elements are independent (inputs are), so that their mean must vanish: from
  // 10^4 elements on |mean| is at most 0.1 of the rms, from 2500 rows on |shrink|
  // too, on top of what plain attention has.
  bool independent_errors = false;
  // An error that is allowed on top: what a kernel that flushes denormals may lose.
  double flushed = 0;
  // One draw of inputs can be lucky for plain attention: its error is the largest of all draws.
  std::vector<PlainError> other_draws = {};
};

// What a run of `operation` left in `result`, element by element:
//   out        max|error| <= 2 * plain's + 2 ulp of max|oracle|, ulp of the result's dtype
//   gradients  3 * plain's + 2 ulp
//   lse        |error| <= 1e-5 * max(1, |oracle|); fp64: 1e-12
// NaN and infinity must be where the oracle has them. Plain's error is the largest of the given
// runs of plain attention. All problems have the same shapes; only tensors that `result` has are
// looked at.
std::vector<TensorReport> check_accuracy(problem::Operation operation,
                                         const tilewise_problem& result,
                                         const tilewise_problem& oracle,
                                         const std::vector<const tilewise_problem*>& plain,
                                         const AccuracyOptions& options);

// max and rms of result - oracle; NaN if one of them is NaN where the other is not.
struct ErrorNorms {
  double max;
  double rms;
};
ErrorNorms error_norms(const tilewise_tensor& result, const tilewise_tensor& oracle);

// The distance from |x| to the next larger number of the dtype.
double ulp(std::int32_t dtype, double x);

}  // namespace tilewise::verify
