// The softmax monoid: identity, associativity, commutativity, and rows split in any way. This is
// the merging part of T03.
#include "math/softmax_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "support/seed.h"
#include "verify/random.h"

namespace tilewise::math {
namespace {

constexpr double kInfinite = HUGE_VAL;

// A state with its output of one column.
template <class T>
struct Piece {
  SoftmaxState<T> state;
  T out;
};

template <class T>
Piece<T> merged(const Piece<T>& a, const Piece<T>& b) {
  const Merged<T> m = merge(a.state, b.state);
  return {m.state, combine(m.factor_a, a.out) + combine(m.factor_b, b.out)};
}

template <class T>
Piece<T> piece_of(T score, T value) {
  return {{score, T(1)}, value};
}

template <class T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <class T>
T ulp_of(T x) {
  return std::nextafter(std::abs(x), T(kInfinite)) - std::abs(x);
}

template <class T>
void expect_close(const Piece<T>& a, const Piece<T>& b) {
  EXPECT_EQ(a.state.max, b.state.max);
  EXPECT_LE(std::abs(a.state.sum - b.state.sum), 2 * ulp_of(b.state.sum));
  const T scale = a.state.sum;  // outputs are weighted sums of numbers up to 1 in size
  EXPECT_LE(std::abs(a.out - b.out), 2 * ulp_of(scale));
}

template <class T>
void expect_identity() {
  const Piece<T> x = {{T(3.25), T(1.75)}, T(-0.4)};
  for (const T garbage : {T(0), T(1e30), T(kInfinite), T(std::nan(""))}) {
    const Piece<T> nothing = {empty_state<T>(), garbage};
    EXPECT_TRUE(same_bits(merged(x, nothing), x));
    EXPECT_TRUE(same_bits(merged(nothing, x), x));
    const Piece<T> both = merged(nothing, nothing);
    EXPECT_EQ(both.state.max, -T(kInfinite));
    EXPECT_EQ(both.state.sum, T(0));
  }
}

TEST(SoftmaxState, EmptyIsTheIdentity) {
  expect_identity<float>();
  expect_identity<double>();
}

template <class T>
void expect_algebra(std::uint64_t seed) {
  TILEWISE_TRACE_SEED();
  verify::Random random(seed);
  for (int i = 0; i < 20000; ++i) {
    Piece<T> pieces[3];
    for (Piece<T>& piece : pieces) {
      const double spread = random.pick({1.0, 10.0, 200.0});
      piece = piece_of(static_cast<T>(spread * random.normal()), static_cast<T>(random.uniform()));
      if (random.chance(0.1)) piece = {empty_state<T>(), T(std::nan(""))};
    }
    const auto& [a, b, c] = pieces;
    const Piece<T> left = merged(merged(a, b), c);
    if (left.state.sum == T(0)) continue;  // all three are empty
    expect_close(left, merged(a, merged(b, c)));
    expect_close(left, merged(c, merged(b, a)));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(SoftmaxState, MergeIsAssociativeAndCommutativeWithinTwoUlps) {
  expect_algebra<float>(tests::run_seed());
  expect_algebra<double>(tests::run_seed());
}

// Pairs such as (finite, -inf), and gaps of +-200, give no NaN, and the side with the larger
// maximum wins.
TEST(SoftmaxState, TheLargerMaximumWinsExtremePairs) {
  for (const float gap : {-200.0f, 200.0f, -5.2e5f, 5.2e5f}) {
    const Piece<float> result = merged(piece_of(0.0f, 1.0f), piece_of(gap, 2.0f));
    EXPECT_EQ(result.state.max, std::max(0.0f, gap));
    EXPECT_EQ(result.state.sum, 1.0f);
    EXPECT_EQ(result.out, gap > 0 ? 2.0f : 1.0f);
  }
  const Piece<float> high = merged(piece_of(3e38f, 1.0f), piece_of(-3e38f, 5.0f));
  EXPECT_EQ(high.out, 1.0f);
}

TEST(SoftmaxState, NaNStays) {
  const float nan = std::nanf("");
  EXPECT_TRUE(std::isnan(merge<float>({nan, nan}, {1, 1}).state.sum));
  EXPECT_TRUE(std::isnan(merge<float>({1, 1}, {nan, nan}).state.sum));
  const Finalised<float> closed = finalise<float>({1, nan}, -static_cast<float>(kInfinite));
  EXPECT_TRUE(std::isnan(closed.lse));
  EXPECT_TRUE(std::isnan(probability(nan, 0.0f)));
  EXPECT_TRUE(std::isnan(probability(0.0f, nan)));
}

// Scores in pieces of random sizes, merged in a random tree, agree with long double.
TEST(SoftmaxState, AnySplitGivesTheSoftmax) {
  const std::uint64_t seed = tests::run_seed();
  TILEWISE_TRACE_SEED();
  verify::Random random(seed);
  for (int repeat = 0; repeat < 200; ++repeat) {
    const std::int64_t count = random.between(1, 60);
    std::vector<Piece<double>> pieces;
    long double sum = 0;
    long double out = 0;
    for (std::int64_t j = 0; j < count; ++j) {
      const double score = 30 * random.normal();
      const double value = random.normal();
      pieces.push_back(piece_of(score, value));
      sum += std::exp(static_cast<long double>(score));
      out += std::exp(static_cast<long double>(score)) * static_cast<long double>(value);
    }
    while (pieces.size() > 1) {
      const auto last = static_cast<std::int64_t>(pieces.size()) - 2;
      const std::size_t at = static_cast<std::size_t>(random.between(0, last));
      pieces[at] = merged(pieces[at], pieces[at + 1]);
      pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    const Finalised<double> closed = finalise(pieces[0].state, -kInfinite);
    const double lse = static_cast<double>(std::log(sum));
    EXPECT_NEAR(closed.lse, lse, 1e-14 * std::max(1.0, std::abs(lse)));
    EXPECT_NEAR(pieces[0].out * closed.scale, static_cast<double>(out / sum), 1e-12);
  }
}

TEST(SoftmaxState, SinkJoinsTheDenominator) {
  const SoftmaxState<double> state = {2, 1.5};  // sum of exp(score) = 1.5 e^2
  const Finalised<double> closed = finalise(state, 1.0);
  const double denominator = 1.5 * std::exp(2.0) + std::exp(1.0);
  EXPECT_NEAR(closed.lse, std::log(denominator), 1e-14);
  EXPECT_NEAR(closed.scale, std::exp(2.0) / denominator, 1e-15);
  const Finalised<double> alone = finalise(empty_state<double>(), 0.75);
  EXPECT_EQ(alone.scale, 0);
  EXPECT_NEAR(alone.lse, 0.75, 1e-15);
  const Finalised<double> neither = finalise(empty_state<double>(), -kInfinite);
  EXPECT_EQ(neither.scale, 0);
  EXPECT_EQ(neither.lse, -kInfinite);
}

// A row in random pieces, each ended with the result of the pieces before it, with the sink in one
// of them.
TEST(SoftmaxState, ResultsOfPiecesContinueToTheWhole) {
  TILEWISE_TRACE_SEED();
  verify::Random random(tests::run_seed());
  for (int step = 0; step < 500; ++step) {
    const double sink = random.chance(0.5) ? 3 * random.normal() : -kInfinite;
    const std::int64_t pieces = random.between(1, 6);
    const std::int64_t with_sink = random.between(0, pieces - 1);
    long double sum = sink == -kInfinite ? 0 : std::exp(static_cast<long double>(sink));
    long double total = 0;
    double lse = -kInfinite;
    double out = std::nan("");
    for (std::int64_t n = 0; n < pieces; ++n) {
      Piece<double> piece = {empty_state<double>(), 0};
      for (std::int64_t keys = random.between(0, 4); keys > 0; --keys) {
        const double score = 20 * random.normal();
        const double value = random.normal();
        piece = merged(piece, piece_of(score, value));
        sum += std::exp(static_cast<long double>(score));
        total += std::exp(static_cast<long double>(score)) * static_cast<long double>(value);
      }
      const Continued<double> end =
          finalise_into(lse, piece.state, n == with_sink ? sink : -kInfinite);
      out = piece.out * end.scale + (end.has_earlier ? end.kept * out : 0);
      lse = end.lse;
    }
    if (sum == 0) {
      EXPECT_EQ(lse, -kInfinite);
      EXPECT_EQ(out, 0);
    } else {
      EXPECT_NEAR(lse, static_cast<double>(std::log(sum)), 1e-12);
      EXPECT_NEAR(out, static_cast<double>(total / sum), 1e-12);
    }
  }
}

TEST(SoftmaxState, AnEmptyPieceKeepsTheResultAsItIs) {
  for (const float lse : {-3.7f, 0.0f, 12.25f}) {
    const Continued<float> end =
        finalise_into(lse, empty_state<float>(), -static_cast<float>(kInfinite));
    EXPECT_EQ(end.scale, 0.0f);
    EXPECT_EQ(end.kept, 1.0f);
    EXPECT_EQ(end.lse, lse);
    EXPECT_TRUE(end.has_earlier);
  }
  // An empty row is not read, a NaN is kept.
  const SoftmaxState<float> keys = {1, 2};
  const float none = -static_cast<float>(kInfinite);
  EXPECT_FALSE(finalise_into(none, keys, none).has_earlier);
  EXPECT_TRUE(std::isnan(finalise_into(std::nanf(""), keys, none).lse));
  EXPECT_TRUE(std::isnan(finalise_into(std::nanf(""), keys, none).kept));
  EXPECT_TRUE(std::isnan(finalise_into(1.0f, SoftmaxState<float>{none, std::nanf("")}, none).lse));
}

TEST(SoftmaxState, ProbabilityOfMaskedScoresAndEmptyRowsIsZero) {
  const float none = -static_cast<float>(kInfinite);
  EXPECT_EQ(probability(none, 3.0f), 0.0f);
  EXPECT_EQ(probability(none, none), 0.0f);
  EXPECT_EQ(probability(3.0f, 3.0f), 1.0f);
  EXPECT_EQ(probability(1e9f, 0.9e9f), 1.0f);  // lse was misrounded: still no probability above 1
}

}  // namespace
}  // namespace tilewise::math
