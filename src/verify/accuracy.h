// The accuracy rule of the semantics (docs/semantics.md, "Accuracy").
#pragma once

#include <string>
#include <vector>

#include "problem/problem.h"
#include "verify/underflow.h"

namespace tilewise::verify {

// The comparison of one result tensor with the fp64 oracle.
struct TensorReport {
  const char* name = "";
  std::int64_t count = 0;
  double max_error = 0;    // max |result - oracle|
  double plain_error = 0;  // the same error of plain attention
  double limit = 0;        // the largest allowed max_error
  double rms_error = 0;
  double mean_error = 0;    // signed mean of result - oracle
  double shrink_error = 0;  // mean of the error towards zero: sign(oracle) * (oracle - result)
  std::int64_t worst = -1;  // row-major index of the element with the largest error
  bool passed = true;
  bool only_biased = false;  // only a mean error exceeds its limit
  std::string reason;        // why the tensor failed, with the numbers

  // Returns max_error / limit; 0 if both are 0. It is at most 1 in a tensor that passed.
  double ratio() const;
};

// The largest error of plain attention in one tensor, on other inputs of the same distribution.
struct PlainError {
  const char* name;
  double max_error;
};

struct AccuracyOptions {
  // Whose errors are independent (as the inputs are), so that their mean must vanish: from 10^4
  // elements on |mean| may be at most 0.1 of the rms, from 2500 rows on |shrink| too, in addition
  // to the mean error of plain attention. If only rows are, both begin at 2500 rows.
  enum class Independent { kNothing, kRows, kElements };
  Independent independent = Independent::kNothing;
  // The error that results may have below the normal numbers; null: none.
  const Underflow* underflow = nullptr;
  // One draw of inputs can be lucky for plain attention, so its error is the largest over all
  // draws. Those of lse are lse_error() of plain attention that does not round its scores.
  std::vector<PlainError> other_draws = {};
  // Whether the products of q, k and v are those of tensor cores in fp8, whose sums have 14 bits or
  // so: lse may have an error of 2e-3.
  bool fp8_products = false;
};

// Compares the results of `operation` with the oracle, element by element:
//   out        max|error| <= 2 * plain's + 2 ulp of max|oracle|, ulp of the result's dtype
//   gradients  3 * plain's + 2 ulp
//              both with what is lost below the normal numbers
//   lse        |error| <= 1e-5 * max(1, |oracle|), fp64: 1e-12, fp8_products: 2e-3; or 2 * plain's
//              in other_draws
// NaN and infinity must be where the oracle has them. "Plain's" error is the largest over the given
// runs of plain attention. All problems have the same shapes; only the tensors that `result` has
// are compared.
std::vector<TensorReport> check_accuracy(problem::Operation operation,
                                         const tilewise_problem& result,
                                         const tilewise_problem& oracle,
                                         const std::vector<const tilewise_problem*>& plain,
                                         const AccuracyOptions& options);

// The largest and the rms value of result - oracle; NaN if one of them is NaN where the other is
// not.
struct ErrorNorms {
  double max;
  double rms;
};
ErrorNorms error_norms(const tilewise_tensor& result, const tilewise_tensor& oracle);

// Returns the largest error relative to max(1, |oracle|), of finite numbers.
double lse_error(const tilewise_tensor& result, const tilewise_tensor& oracle);

// Returns the distance from |x| to the next larger number of the dtype.
double ulp(std::int32_t dtype, double x);

}  // namespace tilewise::verify
