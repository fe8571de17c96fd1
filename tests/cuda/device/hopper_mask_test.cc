// Slices and boolean masks in the Hopper kernel (cuda_sm90), whose key tiles come from a list.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/device/support.h"
#include "registry/support.h"
#include "verify/judge.h"

namespace tilewise::tests {
namespace {

void expect_masked_pass(const Case& c, const verify::Judge::Edit& edit = {}) {
  verify::Judge judge(c, edit);
  const verify::Verdict verdict = judge.judge("cuda_sm90");
  EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
}

struct Shape {
  std::vector<std::int64_t> sizes;  // B, Sq, Sk, H, Hk, D
  std::int64_t value_dim;
};

// Every row of the table that has a block mask; more tiles of keys than stages.
const Shape kShapes[] = {{{2, 300, 500, 4, 2, 64}, 64},
                         {{2, 300, 500, 4, 2, 128}, 128},
                         {{1, 200, 400, 2, 1, 192}, 128},
                         {{1, 200, 300, 2, 1, 256}, 256},
                         {{1, 139, 81, 2, 1, 8}, 88}};

void add_random_slices(Case& c, verify::Random& random, std::int64_t count) {
  for (; count > 0; --count) {
    const std::int64_t q0 = random.between(0, c.q_len);
    const std::int64_t k0 = random.between(0, c.k_len);
    c.slices.push_back({q0, random.between(q0, c.q_len), k0, random.between(k0, c.k_len),
                        random.between(0, 3), random.between(-1, c.heads - 1)});
  }
}

TEST(Device, HopperKernelTakesSlices) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  TILEWISE_TRACE_SEED();
  verify::Random random(run_seed());
  for (const Shape& shape : kShapes) {
    for (int step = 0; step < 8; ++step) {
      Case c = make_case(Operation::kForward, step % 2 == 0 ? TILEWISE_BF16 : TILEWISE_FP16,
                         shape.sizes);
      c.value_dim = shape.value_dim;
      c.slice_heads = random.chance(0.5);
      c.sink = random.chance(0.5);
      if (random.chance(0.3)) c.softcap = 5;
      if (step % 4 == 1) {
        c.q_packed = c.k_packed = true;
        c.batch = 1;
      } else if (step % 4 == 2) {
        c.used = std::vector<std::int64_t>(static_cast<std::size_t>(c.batch), c.k_len - 70);
        c.used[0] = random.between(0, c.k_len);
        c.alibi = true;
      } else if (step % 4 == 3) {
        c.used_q = std::vector<std::int64_t>(static_cast<std::size_t>(c.batch), c.q_len / 2);
        c.used_q[0] = random.between(0, c.q_len);
      }
      add_random_slices(c, random, random.between(1, step < 4 ? 4 : 60));
      expect_masked_pass(c);
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
namespace tilewise::tests { namespace {
TEST(Device, Debug) {
  for (int mode = 0; mode < 4; ++mode) {
    Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 139, 81, 2, 1, 8});
    c.value_dim = 88;
    c.slice_heads = true;
    if (mode == 0) c.slices = {{63, 114, 33, 34, 1, 0}, {66, 94, 9, 70, 3, 1}};
    if (mode == 1) c.slices = {{66, 94, 9, 70, 3, -1}};
    if (mode == 2) c.slices = {{66, 94, 9, 70, 0, -1}};
    if (mode == 3) c.slices = {{66, 94, 9, 70, 1, -1}};
    const Instance instance(c);
    verify::Judge judge(c);
    const verify::Verdict verdict = judge.judge("cuda_sm90");
    std::printf("mode %d: %s\n", mode, verdict.text.substr(0, 200).c_str());
  }
}
}}
