// The error that a result may have because numbers are smaller than the normal ones.
#pragma once

#include <tilewise/tilewise.h>

#include <cstdint>

#include "verify/case.h"

namespace tilewise::verify {

// The part of an error that docs/semantics.md (Accuracy) allows whatever the sizes of the results
// are. A prob below the smallest normal number counts as 0, and the rounding of a denormal number
// is not relative to it, so that plain attention is no yardstick for either.
class Underflow {
 public:
  // `request` has the inputs of the case. `flushes`: the kernel rounds denormal numbers to 0.
  Underflow(const Case& description, const tilewise_problem& request, bool flushes);

  // Returns the allowed part of the error of an output.
  double error(tilewise_tensor tilewise_problem::*member) const;

 private:
  double gradient_error(tilewise_tensor tilewise_problem::*member) const;

  Operation operation_;
  double smallest_normal_;
  double lost_;      // what a weighted mean of values loses
  double dprobs_;    // how much dP - delta loses
  double weighted_;  // an upper bound of |dP - delta| times the smallest normal number
  double scale_;
  double keys_;  // the most keys that a row sees
  double rows_;  // the most rows, over the heads of a group, that see a key
  double all_rows_;
  double largest_q_;
  double largest_k_;
  double largest_v_;
  double largest_dout_;
};

}  // namespace tilewise::verify
