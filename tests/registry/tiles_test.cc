// Tests with many tiles of keys: scores that rise from tile to tile, so that previous sums are
// rescaled again and again, by factors within the range of numbers and beyond it; windows that
// begin and end inside of tiles; widths that are no multiple of a register.
#include <cmath>
#include <iterator>
#include <limits>

#include "cuda/host/runtime.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

// More than two tiles of every kernel, ending in the middle of the third.
constexpr std::int64_t kManyKeys = 1130;

Case long_case(Operation operation, std::int32_t dtype, std::int64_t dim, std::int64_t value_dim) {
  Case c = make_case(operation, dtype, {1, 70, kManyKeys, 2, 1, dim});
  c.value_dim = value_dim;
  return c;
}

// Sets scores from 0 for the first key to 200 for the last, or in reverse. This is far more than
// the rescale threshold of any kernel.
void set_slope(const tilewise_problem& request, std::int64_t dim, bool rises) {
  set_elements(request.q, [&](std::int64_t) { return 1.0; });
  set_elements(request.k, [&](std::int64_t i) {
    const double place = static_cast<double>(i / dim) / static_cast<double>(kManyKeys);
    return 200 * (rises ? place : 1 - place) / std::sqrt(static_cast<double>(dim));
  });
}

TEST(Tiles, RisingAndFallingScoresKeepTheAccuracy) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : kDtypes) {
    for (const bool rises : {false, true}) {
      for (const bool causal : {false, true}) {
        Case c = long_case(Operation::kForward, dtype, 40, 24);
        c.distribution = verify::Distribution::kEqual;  // errors of the rows are not independent
        c.causal = causal;
        expect_all_pass(
            c, [&](const tilewise_problem& request) { set_slope(request, c.head_dim, rises); });
      }
    }
  }
}

// Sets q of row i near slope(i) and k of key j near height(j): scores are their products. They rise
// in steps of a hundred keys, which a kernel visits in order, from either end.
struct Climb {
  double (*slope)(std::int64_t row);
  double (*height)(std::int64_t key);
};

void set_climb(const tilewise_problem& request, const Climb& climb) {
  const double dim = static_cast<double>(request.q.shape[3]);
  Random random(run_seed());
  const auto near_one = [&] { return 1 + 0.01 * random.uniform(); };
  set_elements(request.q, [&](std::int64_t i) {
    return climb.slope(row_index(request.q, TILEWISE_BSHD, i).row) * near_one();
  });
  set_elements(request.k, [&](std::int64_t i) {
    return climb.height(row_index(request.k, TILEWISE_BSHD, i).row) / std::sqrt(dim) * near_one();
  });
}

constexpr Climb kClimbs[] = {
    // With these slopes a step is 2^0, 2^29, .. 2^173: within the range of numbers, near its end,
    // and beyond.
    {[](std::int64_t i) { return static_cast<double>(i % 7) * 0.1; },
     [](std::int64_t j) { return 200.0 * static_cast<double>(j / 100); }},
    {[](std::int64_t i) { return static_cast<double>(i % 7) * 0.1; },
     [](std::int64_t j) { return -200.0 * static_cast<double>(j / 100); }},
    // The steps are 2^115 to 2^139, in steps of 2^0.2.
    {[](std::int64_t i) { return 0.4 + static_cast<double>(i) * 0.0006; },
     [](std::int64_t j) { return -200.0 * static_cast<double>(j / 100); }},
    // The steps are 2^118 to 2^130 for one key, equal for neighbouring rows, followed by a step
    // down that is seen along with it.
    {[](std::int64_t i) { return 0.41 + static_cast<double>(i / 16) * 0.0052; },
     [](std::int64_t j) { return j < 100   ? 190.0
                                 : j < 200 ? 200.0
                                           : 0.0; }},
    // The first key has almost all of the probability; then the scores go up and down again.
    {[](std::int64_t i) { return i % 5 == 3 ? -1.0 : 1.0; },
     [](std::int64_t j) { return j == 0 ? 150.0 : 0.0; }},
    {[](std::int64_t i) { return i % 2 == 0 ? -1.0 : 1.0; },
     [](std::int64_t j) { return j / 100 % 2 == 0 ? 120.0 : -120.0; }},
};

// D, Dv, and enough keys for kernels with a lazy maximum.
struct ClimbSize {
  std::int64_t dim, value_dim, keys;
};
constexpr ClimbSize kClimbSizes[] = {{64, 64, 530}, {128, 128, 830}, {192, 128, 1120}};

Case climb_case(std::int32_t dtype, const ClimbSize& size) {
  Case c = make_case(Operation::kForward, dtype, {1, 140, size.keys, 1, 1, size.dim});
  c.value_dim = size.value_dim;
  return c;
}

TEST(Tiles, ClimbingScoresKeepTheAccuracy) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : kDtypes) {
    for (const ClimbSize& size : kClimbSizes) {
      if (size.dim > 64 && dtype != TILEWISE_BF16 && dtype != TILEWISE_FP16) continue;
      for (std::size_t i = 0; i < std::size(kClimbs); ++i) {
        Case c = climb_case(dtype, size);
        c.causal = i % 2 == 0;
        c.distribution = verify::Distribution::kEqual;  // errors of the rows are not independent
        expect_all_pass(c,
                        [&](const tilewise_problem& request) { set_climb(request, kClimbs[i]); });
      }
    }
  }
}

// A row may begin with more than a tile of keys whose probability is 0, and the other scores may be
// far below 0.
TEST(Tiles, KeysOfMinusInfinityHaveNoEffect) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16}) {
    for (const ClimbSize& size : kClimbSizes) {
      for (const double depth : {0.0, -150.0}) {
        Case c = climb_case(dtype, size);
        c.causal = depth == 0;
        c.distribution = verify::Distribution::kEqual;
        expect_all_pass(c, [&](const tilewise_problem& request) {
          const std::int64_t dim = request.k.shape[3];
          set_elements(request.q, [](std::int64_t i) { return 1 + static_cast<double>(i % 3); });
          set_elements(request.k, [&](std::int64_t i) {
            const std::int64_t key = row_index(request.k, TILEWISE_BSHD, i).row;
            if (i % dim == 0 && key >= size.keys - 330)
              return -std::numeric_limits<double>::infinity();
            return (depth + static_cast<double>(i % 7)) / std::sqrt(static_cast<double>(dim));
          });
        });
      }
    }
  }
}

// The same steps with so many keys that kernels use another tile size.
TEST(Tiles, LongClimbsKeepTheAccuracy) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    for (const bool causal : {false, true}) {
      Case c = make_case(Operation::kForward, dtype, {1, 210, 2100, 1, 1, 64});
      c.causal = causal;
      c.distribution = verify::Distribution::kEqual;
      expect_all_pass(
          c, [&](const tilewise_problem& request) { set_climb(request, kClimbs[causal ? 1 : 2]); });
    }
  }
}

// Neighbouring rows keep their bits, whether their own scores rise by less than the rescale
// threshold or by more: steps of 2^3 to 2^13.
double gentle_slope(std::int64_t row) { return 0.01 + static_cast<double>(row / 3) * 0.0008; }

void expect_climb_stays_in_its_row(std::int32_t dtype, const ClimbSize& size,
                                   double (*height)(std::int64_t key)) {
  const Climb steep = {[](std::int64_t i) {
                         return i % 3 != 1 ? gentle_slope(i) : i % 2 == 0 ? 0.2 : 1.0;
                       },
                       height};
  const Climb gentle = {gentle_slope, height};
  const Case c = climb_case(dtype, size);
  Instance with(c);
  Instance without(c);
  set_climb(with.request(), steep);
  set_climb(without.request(), gentle);
  for (const Kernel* kernel : kernels_for(with)) {
    run_for_bits(kernel->name, with);
    run_for_bits(kernel->name, without);
    for (const auto member : {&tilewise_problem::out, &tilewise_problem::lse}) {
      const std::vector<double> result = verify::numbers_of(with.request().*member);
      const std::vector<double> expected = verify::numbers_of(without.request().*member);
      const auto width = static_cast<std::int64_t>(result.size()) / 140;
      for (std::size_t i = 0; i < result.size(); ++i) {
        const std::int64_t row = static_cast<std::int64_t>(i) / width;
        if (row % 3 == 1) continue;
        ASSERT_EQ(result[i], expected[i]) << kernel->name << " row " << row << ": " << describe(c);
      }
    }
  }
}

TEST(Tiles, ClimbsStayInTheirRows) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : kDtypes) {
    for (const ClimbSize& size : kClimbSizes) {
      // Kernels visit keys from one end or from the other.
      for (const int number : {0, 1}) {
        expect_climb_stays_in_its_row(dtype, size, kClimbs[number].height);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Tiles, EveryWindowAndWidthKeepsTheAccuracy) {
  TILEWISE_TRACE_SEED();
  const std::int64_t kWindows[][2] = {{-1, -1}, {520, 3}, {40, 700}, {0, 0}};
  const std::int64_t kWidths[][2] = {{64, 128}, {33, 15}, {8, 72}, {96, 1}};
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      for (int i = 0; i < 4; ++i) {
        Case c = long_case(operation, dtype, kWidths[i][0], kWidths[i][1]);
        c.window_left = kWindows[i][0];
        c.window_right = kWindows[i][1];
        c.layout = i % 2 == 0 ? TILEWISE_BSHD : TILEWISE_BHSD;
        expect_all_pass(c);
      }
    }
  }
}

TEST(Tiles, OptionsHoldInLaterTiles) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : kDtypes) {
    Case c = long_case(Operation::kForward, dtype, 24, 40);
    c.causal = true;
    c.softcap = 5;
    c.alibi = true;
    c.sink = true;
    c.dropout_p = 0.3;
    c.dropout_seed = 11;
    expect_all_pass(c);
  }
}

// There are more than two tiles of queries, and of the keys that a backward pass takes together.
TEST(Tiles, ManyQueryTilesKeepTheAccuracy) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16}) {
      Case c = make_case(operation, dtype, {1, 1100, 1070, 2, 1, 40});
      c.value_dim = 24;
      c.causal = true;
      c.sink = true;
      expect_all_pass(c);
      c.causal = false;
      c.window_left = 300;
      c.window_right = 20;
      c.dropout_p = 0.2;
      c.dropout_seed = 5;
      expect_all_pass(c);
      c.softcap = 3;
      c.alibi = true;
      c.dropout_p = 0;
      expect_all_pass(c);
    }
  }
}

// There are more tiles of keys than the kernel of the matrix unit keeps packed at this width, and
// more queries than its block has. With causal, rows that see no key are next to rows that do.
TEST(Tiles, MoreKeysThanStayPackedKeepTheAccuracy) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    Case c = make_case(Operation::kForward, dtype, {1, 1150, 1100, 1, 1, 256});
    c.causal = dtype == TILEWISE_BF16;
    expect_all_pass(c);
  }
}

// There are several sequences, with keys of other lengths; two of the sequences lie within one
// tile.
TEST(Tiles, PackedSequencesKeepTheAccuracy) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16}) {
      Case c = make_case(operation, dtype, {3, 0, 0, 2, 2, 32});
      c.q_packed = c.k_packed = true;
      c.q_lengths = {530, 33, 90};
      c.k_lengths = {70, 600, 41};
      c.unowned = 3;
      c.causal = true;
      c.dlse = operation == Operation::kBackward;
      expect_all_pass(c);
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
