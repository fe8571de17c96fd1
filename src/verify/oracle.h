// The oracle: three_pass in fp64 on the same numbers. For fp64 requests it is plain attention in
// long double, since an oracle must be more accurate than the results that it checks.
#pragma once

#include "problem/problem.h"
#include "verify/dequantised.h"
#include "verify/tensor.h"

namespace tilewise::verify {

// Holds an fp64 twin of a request: every floating input is widened exactly (fp8 is multiplied by
// its scales), every output is new. Inputs that have no fp64 form (mask, indices, slopes, sink) are
// shared with the request, which must outlive the oracle. Throws std::runtime_error if the library
// refuses to run.
class Oracle {
 public:
  explicit Oracle(const tilewise_problem& request);

  // kBest needs memory of order Sq x Sk; kLinearMemory is flash2 in fp64.
  enum Method { kBest, kLinearMemory };

  // Fills out and lse of results(); then, for kBackward, the gradients from the oracle's own out
  // and lse.
  void run(problem::Operation operation, Method method = kBest);

  const tilewise_problem& results() const { return twin_; }

 private:
  std::int32_t dtype_;  // of the request
  Dequantised values_;
  TensorOwner owner_;
  tilewise_problem twin_;
};

}  // namespace tilewise::verify
