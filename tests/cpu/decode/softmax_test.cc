// decode/softmax.h, lane_sums.h and plan.h.
#include "cpu/support.h"

namespace tilewise::cpu {
namespace {

template <class P>
class DecodeSoftmax : public ::testing::Test {};
TYPED_TEST_SUITE(DecodeSoftmax, Parts, PartName);
template <class P>
class LaneSums : public ::testing::Test {};
TYPED_TEST_SUITE(LaneSums, Parts, PartName);

TYPED_TEST(DecodeSoftmax, BlocksOneByOneMatchAPlainDoubleLoop) {
  using T = typename TypeParam::Number;
  const std::int64_t keys = TypeParam::all().decode_keys;
  const std::int64_t blocks = 5;
  const double tolerance = 8 * static_cast<double>(std::numeric_limits<T>::epsilon());
  const T scale_log2 = static_cast<T>(math::kLog2E);
  const Array<T> scores = random_numbers<T>(blocks * keys, 1);
  T max = -std::numeric_limits<T>::infinity();
  T sum = T(0);
  T seen = max;
  for (std::int64_t block = 0; block < blocks; ++block) {
    Array<T> probs(scores.begin() + block * keys, scores.begin() + (block + 1) * keys);
    const T old_max = max;
    const T rescale = TypeParam::probes().softmax_row(scale_log2, probs.data(), &max, &sum);
    for (std::int64_t j = 0; j < keys; ++j) seen = std::max(seen, scores[block * keys + j]);
    EXPECT_EQ(max, seen);
    const double expected_rescale =
        block == 0 ? 0 : std::exp(static_cast<double>(old_max) - static_cast<double>(max));
    EXPECT_NEAR(static_cast<double>(rescale), expected_rescale, tolerance);
    for (std::int64_t j = 0; j < keys; ++j) {
      const double score = static_cast<double>(scores[block * keys + j]);
      EXPECT_NEAR(static_cast<double>(probs[j]), std::exp(score - static_cast<double>(max)),
                  tolerance);
    }
  }
  double expected = 0;
  for (const T score : scores)
    expected += std::exp(static_cast<double>(score) - static_cast<double>(max));
  EXPECT_NEAR(static_cast<double>(sum), expected, 2 * tolerance * expected);
}

TYPED_TEST(DecodeSoftmax, ABlockWithoutVisibleKeysChangesNoState) {
  using T = typename TypeParam::Number;
  Array<T> scores(TypeParam::all().decode_keys, -std::numeric_limits<T>::infinity());
  T max = T(3);
  T sum = T(2);
  const T rescale = TypeParam::probes().softmax_row(T(1), scores.data(), &max, &sum);
  EXPECT_EQ(max, T(3));
  EXPECT_EQ(sum, T(2));
  EXPECT_EQ(rescale, T(1));
  for (const T prob : scores) EXPECT_EQ(prob, T(0));
}

TYPED_TEST(LaneSums, LaneNIsTheSumOfRegisterN) {
  using T = typename TypeParam::Number;
  const std::int64_t lanes = TypeParam::probes().lanes;
  Array<T> registers(lanes * lanes);
  Array<T> sums = poisoned<T>(lanes);
  for (std::int64_t i = 0; i < lanes * lanes; ++i)  // whole numbers: every order is exact
    registers[i] = static_cast<T>((i * 37) % 101 - 50);
  TypeParam::probes().sum_lanes(registers.data(), sums.data());
  for (std::int64_t n = 0; n < lanes; ++n) {
    T expected = T(0);
    for (std::int64_t lane = 0; lane < lanes; ++lane) expected += registers[n * lanes + lane];
    EXPECT_EQ(sums[n], expected) << n;
  }
}

TEST(DecodePlan, SplitsAreMultiplesOf512KeysAndAtMost128) {
  const Probes& probes = best_probes();
  for (std::int64_t keys : {0L, 1L, 511L, 512L, 513L, 65536L, 65537L, 1000000L, 1L << 40}) {
    const std::int64_t length = probes.split_length(keys);
    const std::int64_t count = probes.split_count(keys);
    EXPECT_EQ(length % 512, 0) << keys;
    EXPECT_GE(length, 512) << keys;
    EXPECT_GE(count, 1) << keys;
    EXPECT_LE(count, 128) << keys;
  }
}

TEST(DecodePlan, SplitsCoverTheKeysAndNoneIsEmpty) {
  const Probes& probes = best_probes();
  for (std::int64_t keys = 1; keys < 200000; keys += 97) {
    const std::int64_t length = probes.split_length(keys);
    const std::int64_t count = probes.split_count(keys);
    ASSERT_GE(count * length, keys) << keys;
    ASSERT_LT((count - 1) * length, keys) << keys;
  }
}

TEST(DecodePlan, EveryInstructionSetCutsTheSame) {
  for (std::int64_t keys = 1; keys < 200000; keys += 991)
    ASSERT_EQ(best_probes().split_count(keys), generic_probes().split_count(keys)) << keys;
}

}  // namespace
}  // namespace tilewise::cpu
