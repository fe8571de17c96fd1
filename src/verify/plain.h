// Plain attention: three passes over whole rows. It is the yardstick of the accuracy rule and the
// oracle for single rows. Its arithmetic is its own (libm's exp and tanh, sums in order); which
// keys a row sees and which probabilities dropout keeps follow the rules of the library
// (math/mask_rule.h, math/philox.h).
#pragma once

#include <vector>

#include "problem/kernel.h"
#include "problem/problem.h"
#include "verify/dequantised.h"
#include "verify/tensor.h"

namespace tilewise::verify {

// The order of every sum over columns, keys and rows. Order 0 goes from the first to the last.
// Orders with an odd number go backwards, use fused operations, multiply by the inverse of a row's
// sum, and read an lse that was rounded the other way. Order k starts k/2 quarters of the way in.
// The last kUnroundedOrders do not round matrices between the passes.
//
// The error of plain attention is the largest over several orders, because a single one can be
// lucky: cancelling sums may cancel exactly (dP - delta of a row that sees one key), a factor that
// all keys share may be exact, and few outputs make few errors to take the maximum of.
using SumOrder = int;
inline constexpr SumOrder kSumOrders = 8;
inline constexpr SumOrder kUnroundedOrders = 2;  // the last ones

// Runs a request (any dtype, layout, option) in fp32 arithmetic, or fp64 for fp64 inputs. Scores,
// probabilities and, backward, dP and dS are rounded to the inputs' dtype, as a matrix that is
// stored between passes would be. The results have the dtypes of the request's outputs. fp8 is
// computed as fp32 inputs with the numbers times their scales, and has results of fp32. It uses one
// thread.
//
// fp8_probs: forward rounds 256 exp(score - max) to e4m3, for which a row's largest prob is a
// number near the end of the range, or exp(score - max) to fp16.
class Plain {
 public:
  Plain(const tilewise_problem& request, SumOrder order,
        problem::Fp8Probs fp8_probs = problem::Fp8Probs::kFp32);

  // Fills the outputs of the operation in results(). kBackward reads out and lse of the request, as
  // every backward pass does, including their roundings. Throws std::runtime_error if the request
  // is not valid.
  void run(problem::Operation operation);

  const tilewise_problem& results() const { return results_; }

 private:
  SumOrder order_;
  problem::Fp8Probs fp8_probs_;
  Dequantised values_;
  TensorOwner owner_;
  tilewise_problem results_;
};

// Runs plain attention without roundings between the passes, in long double (64 bits of mantissa on
// x86, 113 on Arm). This is the oracle of fp64 kernels, which are as accurate as three_pass in
// fp64. Fills the request's outputs, which must be contiguous.
void run_extended(problem::Operation operation, const tilewise_problem& request);

// Computes chosen rows of out in fp64 arithmetic, without roundings: the oracle where Sq x Sk is
// too large for three_pass. A row is given by batch, head and row of the sequence.
struct RowNumber {
  std::int64_t batch;
  std::int64_t head;
  std::int64_t row;
};
struct ExactRow {
  std::vector<double> out;  // (Dv)
  double lse;
};
std::vector<ExactRow> exact_rows(const tilewise_problem& request,
                                 const std::vector<RowNumber>& rows);

}  // namespace tilewise::verify
