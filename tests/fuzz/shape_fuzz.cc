// The differential fuzzer: bytes choose a case, and every kernel of the registry must agree with
// three_pass in fp64 within the accuracy rule.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "plan/registry.h"
#include "verify/cases.h"
#include "verify/judge.h"

namespace {

using tilewise::problem::Operation;

// Kernels of instruction sets that this machine lacks are refused, as they should be.
void judge_all(const tilewise::verify::Case& description) {
  tilewise::verify::Judge judge(description);
  for (const tilewise::problem::Kernel* kernel : tilewise::plan::kernels(description.operation)) {
    const tilewise::verify::Verdict verdict = judge.judge(kernel->name);
    if (verdict.result != tilewise::verify::Verdict::kFailed) continue;
    std::fprintf(stderr, "%s\n", verdict.text.c_str());
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 10) return 0;
  std::uint64_t seed;
  std::memcpy(&seed, data + 2, sizeof(seed));
  const Operation operation = data[0] % 2 == 0 ? Operation::kForward : Operation::kBackward;
  tilewise::verify::Random random(seed);
  tilewise::verify::Case description =
      tilewise::verify::random_case(operation, 1 + data[0] / 2 % 4, random);
  if (size > 10 && data[10] > 0) description.head_dim = description.value_dim = data[10];
  if (size > 11 && description.slices.empty()) description.window_left = data[11] - 1;
  if (description.storage == tilewise::verify::Storage::kInterleaved) {
    description.storage = tilewise::verify::Storage::kContiguous;
  }
  if (description.q_len * description.k_len * description.batch * description.heads > 4000)
    return 0;
  judge_all(description);
  return 0;
}
