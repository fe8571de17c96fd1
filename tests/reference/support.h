// Runs rungs in tests: cases, workspaces, threads.
#pragma once

#include <string>
#include <vector>

#include "problem/kernel.h"
#include "verify/case.h"

namespace tilewise::reference_test {

using problem::Kernel;
using problem::Operation;
using verify::Case;

struct Rung {
  const char* name;
  const Kernel* forward;
  const Kernel* backward;

  const Kernel& kernel(Operation operation) const {
    return operation == Operation::kForward ? *forward : *backward;
  }
};
const std::vector<Rung>& rungs();

struct RunSetup {
  std::int64_t concurrency = 1;
  std::int64_t sram_bytes = 0;  // 0: the default
  problem::Traffic* traffic = nullptr;
};

// Runs the kernel on the request, in a workspace of exactly the size that it requires, filled with
// NaN. Fails the test if the kernel refuses.
void run(const Kernel& kernel, Operation operation, const tilewise_problem& request,
         const RunSetup& setup = {});

// Returns the elements in row-major order.
std::vector<double> numbers(const tilewise_tensor& tensor);

// Returns small cases that together cover every option of the semantics: fp64, both operations.
std::vector<Case> small_cases();

// A fast memory in which every small case has several tiles, the last ones smaller.
inline constexpr std::int64_t kTinySramBytes = 200;

}  // namespace tilewise::reference_test
