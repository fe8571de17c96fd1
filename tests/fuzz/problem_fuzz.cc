// T14: any bytes in the C structs give a status and a line, and no memory is touched that is not
// the problem's.
#include "mutated_problem.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size <= 512) tilewise::fuzz::MutatedProblem(data, size).run();
  return 0;
}
