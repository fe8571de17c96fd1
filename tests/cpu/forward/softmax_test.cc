// forward/softmax.h: a panel of queries meets tiles of keys.
#include "cpu/support.h"

namespace tilewise::cpu {
namespace {

template <class P>
class Softmax : public ::testing::Test {};
TYPED_TEST_SUITE(Softmax, Parts, PartName);

constexpr double kScaleLog2 = 0.25 * math::kLog2E;

// The state of a panel, empty at first.
template <class P>
struct PanelState {
  using T = typename P::Number;
  std::int64_t width = P::probes().panel_width;
  Array<T> max = Array<T>(width, -std::numeric_limits<T>::infinity());
  Array<T> sum = Array<T>(width, T(0));
  Array<T> rescale = poisoned<T>(width);

  void step(std::int64_t keys, Array<T>& scores) {
    P::probes().softmax_step(keys, static_cast<T>(kScaleLog2), scores.data(), max.data(),
                             sum.data(), rescale.data());
  }
};

template <class T>
double tolerance() {
  return 8 * static_cast<double>(std::numeric_limits<T>::epsilon());
}

TYPED_TEST(Softmax, MatchesAPlainDoubleLoop) {
  using T = typename TypeParam::Number;
  for (const std::int64_t keys : {1, 2, 3, 4, 5, 31, 128}) {
    PanelState<TypeParam> state;
    const std::int64_t width = state.width;
    const Array<T> scores = random_numbers<T>(keys * width, 1);
    Array<T> probs = scores;
    state.step(keys, probs);
    for (std::int64_t lane = 0; lane < width; ++lane) {
      T max = -std::numeric_limits<T>::infinity();
      for (std::int64_t j = 0; j < keys; ++j) max = std::max(max, scores[j * width + lane]);
      EXPECT_EQ(state.max[lane], max);
      EXPECT_EQ(state.rescale[lane], T(0)) << "nothing was seen before";
      double sum = 0;
      for (std::int64_t j = 0; j < keys; ++j) {
        const double expected =
            std::exp2((static_cast<double>(scores[j * width + lane]) - static_cast<double>(max)) *
                      static_cast<double>(static_cast<T>(kScaleLog2)));
        EXPECT_NEAR(static_cast<double>(probs[j * width + lane]), expected, tolerance<T>());
        sum += expected;
      }
      EXPECT_NEAR(static_cast<double>(state.sum[lane]), sum, tolerance<T>() * sum);
    }
  }
}

TYPED_TEST(Softmax, TilesOneByOneGiveTheStateOfOneTile) {
  using T = typename TypeParam::Number;
  const std::int64_t keys = 96;
  PanelState<TypeParam> whole;
  PanelState<TypeParam> pieces;
  Array<T> scores = random_numbers<T>(keys * whole.width, 2);
  Array<T> tail(scores.begin() + 40 * whole.width, scores.end());
  Array<T> head(scores.begin(), scores.begin() + 40 * whole.width);
  pieces.step(40, head);
  const Array<T> old_max = pieces.max;
  pieces.step(keys - 40, tail);
  whole.step(keys, scores);
  for (std::int64_t lane = 0; lane < whole.width; ++lane) {
    EXPECT_EQ(pieces.max[lane], whole.max[lane]);
    const double sum = static_cast<double>(whole.sum[lane]);
    EXPECT_NEAR(static_cast<double>(pieces.sum[lane]), sum, tolerance<T>() * sum);
    const double rescale =
        std::exp2(static_cast<double>(old_max[lane] - pieces.max[lane]) * kScaleLog2);
    EXPECT_NEAR(static_cast<double>(pieces.rescale[lane]), rescale, tolerance<T>());
  }
}

TYPED_TEST(Softmax, MaskedScoresHaveProbabilityZero) {
  using T = typename TypeParam::Number;
  const std::int64_t keys = 7;
  PanelState<TypeParam> state;
  Array<T> scores = random_numbers<T>(keys * state.width, 3);
  for (std::int64_t lane = 0; lane < state.width; ++lane)
    scores[3 * state.width + lane] = -std::numeric_limits<T>::infinity();
  state.step(keys, scores);
  for (std::int64_t lane = 0; lane < state.width; ++lane) {
    EXPECT_EQ(scores[3 * state.width + lane], T(0));
    EXPECT_GE(state.sum[lane], T(1));
  }
}

TYPED_TEST(Softmax, ARowWithoutVisibleKeysStaysEmpty) {
  using T = typename TypeParam::Number;
  const std::int64_t keys = 5;
  PanelState<TypeParam> state;
  Array<T> scores(keys * state.width, -std::numeric_limits<T>::infinity());
  state.step(keys, scores);
  for (std::int64_t lane = 0; lane < state.width; ++lane) {
    EXPECT_EQ(state.max[lane], -std::numeric_limits<T>::infinity());
    EXPECT_EQ(state.sum[lane], T(0));
    EXPECT_EQ(state.rescale[lane], T(0));
  }
  for (const T prob : scores) EXPECT_EQ(prob, T(0));
}

TYPED_TEST(Softmax, ANaNStaysInItsRow) {
  using T = typename TypeParam::Number;
  const std::int64_t keys = 9;
  PanelState<TypeParam> with;
  PanelState<TypeParam> without;
  Array<T> clean = random_numbers<T>(keys * with.width, 4);
  Array<T> scores = clean;
  const std::int64_t row = with.width / 2;
  scores[4 * with.width + row] = std::numeric_limits<T>::quiet_NaN();
  with.step(keys, scores);
  without.step(keys, clean);
  for (std::int64_t lane = 0; lane < with.width; ++lane) {
    if (lane == row) {
      EXPECT_TRUE(std::isnan(with.sum[lane]));
    } else {
      EXPECT_TRUE(same_bits(with.sum[lane], without.sum[lane])) << lane;
      EXPECT_TRUE(same_bits(with.max[lane], without.max[lane])) << lane;
    }
  }
}

TYPED_TEST(Softmax, ScoresOfThousandsDoNotOverflow) {
  using T = typename TypeParam::Number;
  const std::int64_t keys = 4;
  PanelState<TypeParam> state;
  Array<T> scores(keys * state.width, T(-5000));
  for (std::int64_t lane = 0; lane < state.width; ++lane) scores[lane] = T(9000);
  state.step(keys, scores);
  for (std::int64_t lane = 0; lane < state.width; ++lane) {
    EXPECT_EQ(scores[lane], T(1));
    EXPECT_EQ(scores[state.width + lane], T(0));
    EXPECT_EQ(state.sum[lane], T(1));
  }
}

}  // namespace
}  // namespace tilewise::cpu
