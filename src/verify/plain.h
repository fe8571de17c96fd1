// Plain attention: three passes over whole rows, the yardstick of the accuracy rule and the oracle
// for single rows. Own arithmetic (libm's exp and tanh, sums in order); which keys a row sees and
// what dropout keeps are the library's rules (math/mask_rule.h, math/philox.h).
#pragma once

#include <vector>

#include "problem/problem.h"
#include "verify/tensor.h"

namespace tilewise::verify {

// The order of every sum over columns, keys and rows: 0 is from the first to the last; odd ones go
// backwards, with fused operations, multiply by the inverse of a row's sum, and read an lse that
// was rounded the other way; k starts k/2 quarters of the way in; the last two do not round
// matrices between the passes. The error of plain attention is the largest over several orders: in
// a single one, cancelling sums may cancel exactly by luck (dP - delta of a row that sees one key),
// a factor that all keys share may be exact by luck, and few outputs make few errors to take the
// maximum of.
using SumOrder = int;
inline constexpr SumOrder kSumOrders = 8;

// Runs on a request (any dtype, layout, option) in fp32 arithmetic, fp64 for fp64 inputs. Scores,
// probabilities and, backward, dP and dS are rounded to the inputs' dtype, as a matrix that is
// stored between passes would be. The results have the dtypes of the request's outputs. One thread.
class Plain {
 public:
  Plain(const tilewise_problem& request, SumOrder order);

  // Fills the outputs of the operation in results(). kBackward reads out and lse of the request, as
  // every backward pass does: their roundings are its inputs'.
  // Throws std::runtime_error if the request is not valid.
  void run(problem::Operation operation);

  const tilewise_problem& results() const { return results_; }

 private:
  SumOrder order_;
  TensorOwner owner_;
  tilewise_problem results_;
};

// The same without roundings between the passes, in long double (64 bits of mantissa on x86, 113 on
// Arm): the oracle of fp64 kernels, which three_pass in fp64 is no more exact than. Fills the
// request's outputs, which are contiguous.
void run_extended(problem::Operation operation, const tilewise_problem& request);

// Chosen rows of out in fp64 arithmetic, without roundings: the oracle where Sq x Sk is too large
// for three_pass. Rows are (batch, head, row of the sequence).
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
