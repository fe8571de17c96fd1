#include "verify/accuracy.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "problem/tensors.h"
#include "verify/tensor.h"

namespace tilewise::verify {
namespace {

constexpr std::int64_t kManyElements = 10000;
constexpr std::int64_t kManyRows = 2500;
constexpr double kBiasLimit = 0.1;

// True if both are NaN, or the same infinity.
bool same_non_finite(double a, double b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

[[gnu::format(printf, 2, 3)]] void fail(TensorReport& report, const char* format, ...) {
  char text[256];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  if (report.passed) report.reason = std::string(report.name) + ": " + text;
  report.passed = false;
}

struct Sums {
  double squares = 0;
  double signed_errors = 0;
  double shrinkage = 0;
};

// Fills the errors of a report. Non-finite elements must agree and count as exact.
void measure(const std::vector<double>& result, const std::vector<double>& oracle,
             TensorReport& report) {
  Sums sums;
  report.count = static_cast<std::int64_t>(result.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (!std::isfinite(result[i]) || !std::isfinite(oracle[i])) {
      if (same_non_finite(result[i], oracle[i])) continue;
      report.worst = static_cast<std::int64_t>(i);
      report.max_error = HUGE_VAL;
      fail(report, "element %lld is %g where the oracle has %g", static_cast<long long>(i),
           result[i], oracle[i]);
      return;
    }
    const double error = result[i] - oracle[i];
    sums.squares += error * error;
    sums.signed_errors += error;
    if (oracle[i] != 0) sums.shrinkage += oracle[i] > 0 ? -error : error;
    if (std::abs(error) <= report.max_error) continue;
    report.max_error = std::abs(error);
    report.worst = static_cast<std::int64_t>(i);
  }
  const double count = std::max(1.0, static_cast<double>(result.size()));
  report.rms_error = std::sqrt(sums.squares / count);
  report.mean_error = sums.signed_errors / count;
  report.shrink_error = sums.shrinkage / count;
}

void judge_errors(double largest, std::int32_t dtype, double factor, double underflow,
                  TensorReport& report) {
  report.limit = factor * report.plain_error + 2 * ulp(dtype, largest) + underflow;
  if (report.max_error > report.limit) {
    fail(report, "max error %.3g (element %lld) is over the limit %.3g", report.max_error,
         static_cast<long long>(report.worst), report.limit);
  }
}

// The largest |mean error| of plain attention, in any order of its sums.
struct SharedBias {
  double mean = 0;
  double shrinkage = 0;
};

// The elements of a row share the error of its sum, which scales them all, so shrinkage is averaged
// over rows, not over elements. So is the mean where the values have one. `shared` holds the mean
// errors of plain attention itself, which come from factors that belong to the formula (the scale
// as a float is one number, with one rounding, and so is that of dropout).
void judge_bias(std::int64_t rows, AccuracyOptions::Independent independent,
                const SharedBias& shared, TensorReport& report) {
  using Independent = AccuracyOptions::Independent;
  const bool many_rows = rows >= kManyRows;
  if (independent == Independent::kNothing || report.count < kManyElements) return;
  if (independent == Independent::kRows && !many_rows) return;
  const double limit = kBiasLimit * report.rms_error;
  const bool within_limit = report.passed;
  const double mean_limit = independent == Independent::kRows ? limit + shared.mean : limit;
  if (std::abs(report.mean_error) > mean_limit) {
    fail(report, "mean error %.3g is over %.3g: 0.1 of its rms and what plain attention shares",
         report.mean_error, mean_limit);
  }
  if (many_rows && std::abs(report.shrink_error) > limit + shared.shrinkage) {
    fail(report, "mean error towards zero %.3g is over %.3g: 0.1 of its rms and plain attention's",
         report.shrink_error, limit + shared.shrinkage);
  }
  report.only_biased = within_limit && !report.passed;
}

// Returns the largest error relative to max(1, |lse|), and its place.
double largest_lse_error(const std::vector<double>& result, const std::vector<double>& oracle,
                         std::int64_t* place) {
  double worst = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (!std::isfinite(result[i]) || !std::isfinite(oracle[i])) continue;
    const double error = std::abs(result[i] - oracle[i]) / std::max(1.0, std::abs(oracle[i]));
    if (error <= worst) continue;
    worst = error;
    *place = static_cast<std::int64_t>(i);
  }
  return worst;
}

void judge_lse(const std::vector<double>& result, const std::vector<double>& oracle,
               double least_limit, TensorReport& report) {
  report.limit = std::max(least_limit, 2 * report.plain_error);
  const double worst = largest_lse_error(result, oracle, &report.worst);
  if (std::isfinite(report.max_error)) report.max_error = worst;
  if (worst > report.limit) fail(report, "relative error %.3g is over %.3g", worst, report.limit);
}

struct Answers {
  const tilewise_problem& result;
  const tilewise_problem& oracle;
  const std::vector<const tilewise_problem*>& plain;
};

// Where plain attention overflows and the oracle does not, plain attention is no yardstick, and
// only the ulps count.
TensorReport plain_report(const std::vector<double>& plain, const std::vector<double>& oracle) {
  TensorReport report;
  measure(plain, oracle, report);
  return std::isfinite(report.max_error) ? report : TensorReport();
}

TensorReport judge_tensor(const char* name, tilewise_tensor tilewise_problem::*member,
                          const Answers& answers, const AccuracyOptions& options) {
  TensorReport report;
  report.name = name;
  const std::int32_t dtype = (answers.result.*member).dtype;
  const std::vector<double> result = numbers_of(answers.result.*member);
  std::vector<double> oracle = numbers_of(answers.oracle.*member);
  for (double& x : oracle) {  // beyond the dtype's range infinity is the right answer
    if (std::isinf(rounded(dtype, x))) x = rounded(dtype, x);
  }
  measure(result, oracle, report);
  for (const PlainError& other : options.other_draws) {
    if (std::strcmp(other.name, name) == 0) {
      report.plain_error = std::max(report.plain_error, other.max_error);
    }
  }
  if (member == &tilewise_problem::lse) {
    const double wide = options.fp8_products ? 2e-3 : 1e-5;
    judge_lse(result, oracle, dtype == TILEWISE_FP64 ? 1e-12 : wide, report);
    return report;
  }
  const double factor = member == &tilewise_problem::out ? 2 : 3;
  SharedBias shared;
  for (const tilewise_problem* plain : answers.plain) {
    const TensorReport other = plain_report(numbers_of(plain->*member), oracle);
    report.plain_error = std::max(report.plain_error, other.max_error);
    shared.mean = std::max(shared.mean, std::abs(other.mean_error));
    shared.shrinkage = std::max(shared.shrinkage, std::abs(other.shrink_error));
  }
  const double underflow = options.underflow == nullptr ? 0 : options.underflow->error(member);
  judge_errors(largest_finite(oracle), dtype, factor, underflow, report);
  const tilewise_tensor& tensor = answers.result.*member;
  const std::int64_t width = std::max<std::int64_t>(1, tensor.shape[tensor.rank - 1]);
  judge_bias(report.count / width, options.independent, shared, report);
  return report;
}

}  // namespace

double TensorReport::ratio() const { return max_error == 0 ? 0 : max_error / limit; }

double lse_error(const tilewise_tensor& result, const tilewise_tensor& oracle) {
  std::int64_t place = 0;
  return largest_lse_error(numbers_of(result), numbers_of(oracle), &place);
}

double ulp(std::int32_t dtype, double x) {
  int mantissa_bits = 52;
  int min_exponent = -1022;
  if (dtype == TILEWISE_FP32 || dtype == TILEWISE_BF16) {
    mantissa_bits = dtype == TILEWISE_FP32 ? 23 : 7;
    min_exponent = -126;
  } else if (dtype == TILEWISE_FP16) {
    mantissa_bits = 10;
    min_exponent = -14;
  }
  const int exponent = x == 0 ? min_exponent : std::max(std::ilogb(x), min_exponent);
  return std::ldexp(1.0, exponent - mantissa_bits);
}

ErrorNorms error_norms(const tilewise_tensor& result, const tilewise_tensor& oracle) {
  TensorReport report;
  measure(numbers_of(result), numbers_of(oracle), report);
  if (!std::isfinite(report.max_error)) return {std::nan(""), std::nan("")};
  return {report.max_error, report.rms_error};
}

std::vector<TensorReport> check_accuracy(problem::Operation operation,
                                         const tilewise_problem& result,
                                         const tilewise_problem& oracle,
                                         const std::vector<const tilewise_problem*>& plain,
                                         const AccuracyOptions& options) {
  const Answers answers = {result, oracle, plain};
  std::vector<TensorReport> reports;
  for (const problem::NamedTensor& tensor : problem::kTensors) {
    if (tensor.role(operation) != problem::Role::kOutput) continue;
    if (!problem::present(result.*tensor.member)) continue;
    reports.push_back(judge_tensor(tensor.name, tensor.member, answers, options));
  }
  return reports;
}

}  // namespace tilewise::verify
