#include "standard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "flags.h"
#include "problem/sequence.h"
#include "problem/tensors.h"
#include "problem/validate.h"

namespace tilewise::cli {
namespace {

// The number of products q.k and p.v up to which the whole oracle is computed: a few seconds.
constexpr double kAffordable = 2e9;
constexpr double kAffordableExtended = 2e8;  // the same limit in long double
constexpr double kAffordableMatrices = 4e9;  // bytes of S and P
constexpr std::int64_t kSampledRows = 64;

struct Parsed {
  problem::Problem problem;
  std::vector<problem::Sequence> sequences;

  explicit Parsed(const tilewise_problem& request) {
    if (problem::make_problem(problem::Operation::kForward, request, &problem) != TILEWISE_OK) {
      throw UsageError(problem::message());
    }
    sequences.resize(static_cast<std::size_t>(problem.batch));
    problem::fill_sequences(problem, sequences.data());
  }
};

bool affordable(const Parsed& parsed) {
  const problem::Problem& p = parsed.problem;
  double pairs = 0;
  double largest = 0;
  for (const problem::Sequence& sequence : parsed.sequences) {
    const double here = static_cast<double>(sequence.q_len) * static_cast<double>(sequence.k_len);
    pairs += here;
    largest = std::max(largest, here);
  }
  const double width = static_cast<double>(p.head_dim + p.value_dim);
  const bool fp64 = p.dtype == TILEWISE_FP64;
  return pairs * static_cast<double>(p.heads) * width <=
             (fp64 ? kAffordableExtended : kAffordable) &&
         largest * 16 <= kAffordableMatrices;
}

// Returns rows spread evenly over all heads of all sequences, including the first and the last.
std::vector<verify::RowNumber> sample(const Parsed& parsed) {
  std::int64_t total = 0;
  for (const problem::Sequence& sequence : parsed.sequences) {
    total += sequence.q_len * parsed.problem.heads;
  }
  const std::int64_t count = std::min(total, kSampledRows);
  std::vector<verify::RowNumber> rows;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t place = count > 1 ? (total - 1) / (count - 1) * i : 0;
    if (i + 1 == count) place = total - 1;
    for (const problem::Sequence& sequence : parsed.sequences) {
      const std::int64_t here = sequence.q_len * parsed.problem.heads;
      if (place < here) {
        rows.push_back({sequence.batch, place / sequence.q_len, place % sequence.q_len});
        break;
      }
      place -= here;
    }
  }
  return rows;
}

}  // namespace

Standard::Standard(problem::Operation operation, const tilewise_problem& request) {
  const Parsed parsed(request);
  const bool backward = operation == problem::Operation::kBackward;
  if (affordable(parsed) || backward) {
    const bool whole = affordable(parsed);
    oracle_ = std::make_unique<verify::Oracle>(request);
    oracle_->run(operation, whole ? verify::Oracle::kBest : verify::Oracle::kLinearMemory);
    description_ = whole ? "the fp64 oracle, every element" : "flash2 in fp64, every element";
    return;
  }
  numbers_ = sample(parsed);
  rows_ = verify::exact_rows(request, numbers_);
  description_ = fmt::format("fp64 arithmetic on a sample of {} of {} rows", numbers_.size(),
                             parsed.problem.batch * parsed.problem.heads * parsed.problem.q_rows);
}

verify::ErrorNorms Standard::error(problem::Operation operation,
                                   const tilewise_problem& result) const {
  if (!oracle_) return sampled_error(result);
  verify::ErrorNorms total = {0, 0};
  double count = 0;
  for (const problem::NamedTensor& tensor : problem::kTensors) {
    const bool statistic = tensor.member == &tilewise_problem::lse;
    if (statistic || tensor.role(operation) != problem::Role::kOutput) continue;
    const tilewise_tensor& numbers = result.*tensor.member;
    if (!problem::present(numbers)) continue;
    const verify::ErrorNorms norms =
        verify::error_norms(numbers, oracle_->results().*tensor.member);
    if (std::isnan(norms.max)) return norms;
    const double elements = static_cast<double>(verify::element_count(numbers));
    total.max = std::max(total.max, norms.max);
    total.rms += norms.rms * norms.rms * elements;
    count += elements;
  }
  total.rms = std::sqrt(total.rms / std::max(count, 1.0));
  return total;
}

verify::ErrorNorms Standard::sampled_error(const tilewise_problem& result) const {
  const Parsed parsed(result);
  verify::ErrorNorms norms = {0, 0};
  double count = 0;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const verify::RowNumber& number = numbers_[i];
    const problem::Sequence& sequence = parsed.sequences[static_cast<std::size_t>(number.batch)];
    for (std::size_t c = 0; c < rows_[i].out.size(); ++c) {
      const std::int64_t offset = parsed.problem.out.offset(
          number.batch, number.head, sequence.q_start + number.row, static_cast<std::int64_t>(c));
      const double error = verify::read_element(result.out, offset) - rows_[i].out[c];
      const bool both_nan = std::isnan(rows_[i].out[c]) && std::isnan(error);
      if (std::isnan(error) && !both_nan) return {error, error};
      if (both_nan) continue;
      norms.max = std::max(norms.max, std::abs(error));
      norms.rms += error * error;
      count += 1;
    }
  }
  norms.rms = std::sqrt(norms.rms / std::max(count, 1.0));
  return norms;
}

}  // namespace tilewise::cli
