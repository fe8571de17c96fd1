// fp8 on the Hopper kernel (cuda_sm90): the accuracy rule with probs of e4m3, every code, scales,
// and numbers that are not finite beside a mask.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cuda/device/support.h"

namespace tilewise::tests {
namespace {

constexpr std::int32_t kFormats[] = {TILEWISE_E4M3, TILEWISE_E5M2};

Case fp8_case(std::int32_t dtype, const std::vector<std::int64_t>& sizes,
              verify::Descale descale = verify::Descale::kHeads) {
  Case c = make_case(Operation::kForward, dtype, sizes);
  c.descale = descale;
  return c;
}

void expect_passes(const Case& c) {
  verify::Judge judge(c);
  const verify::Verdict verdict = judge.judge("cuda_sm90");
  EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
}

TEST(Device, HopperFp8CoversItsHeadDimensions) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const std::int32_t dtype : kFormats) {
    for (const std::int64_t dim : {16, 48, 64, 80, 128}) {
      Case c = fp8_case(dtype, {2, 150, 300, 4, 2, dim});
      for (const bool causal : {false, true}) {
        c.causal = c.sink = causal;
        c.output_dtype = causal ? TILEWISE_FP16 : TILEWISE_BF16;
        c.used = causal ? std::vector<std::int64_t>{300, 77} : std::vector<std::int64_t>{};
        expect_passes(c);
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
