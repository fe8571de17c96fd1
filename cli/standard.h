// The standard that results are compared with: the fp64 oracle, or as much of it as is affordable.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "verify/accuracy.h"
#include "verify/oracle.h"
#include "verify/plain.h"

namespace tilewise::cli {

// For small problems, every element of out, or of dq, dk and dv, is compared with the oracle. For
// large ones, forward is compared with a sample of rows in fp64 arithmetic, and backward with
// flash2 in fp64, whose memory is linear.
class Standard {
 public:
  Standard(problem::Operation operation, const tilewise_problem& request);

  verify::ErrorNorms error(problem::Operation operation, const tilewise_problem& result) const;

  const std::string& description() const { return description_; }

 private:
  verify::ErrorNorms sampled_error(const tilewise_problem& result) const;

  std::unique_ptr<verify::Oracle> oracle_;
  std::vector<verify::RowNumber> numbers_;
  std::vector<verify::ExactRow> rows_;
  std::string description_;
};

}  // namespace tilewise::cli
