// Any bytes in the C structs give a status and a line, and no memory is touched that does not
// belong to the problem (T14).
#include "mutated_problem.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size <= 512) tilewise::fuzz::MutatedProblem(data, size).run();
  return 0;
}
