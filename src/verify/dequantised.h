// The numbers that a request with fp8 stands for: each stored number times its scale.
#pragma once

#include "problem/problem.h"
#include "verify/tensor.h"

namespace tilewise::verify {

// A request whose q, k, v and bias have the numbers of `request`, in `dtype` (rounded once, if at
// all), and no scales. `out` has that dtype too, and no memory. A request without fp8 stays as it
// is. The way to the scale of a number is written down a second time here, for the oracle's sake.
// Pages of a cache are scaled as those of the sequence that names them last.
class Dequantised {
 public:
  Dequantised(const tilewise_problem& request, std::int32_t dtype);

  const tilewise_problem& request() const { return request_; }

 private:
  TensorOwner owner_;
  tilewise_problem request_;
};

}  // namespace tilewise::verify
