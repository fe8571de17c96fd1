// Many tiles of keys: scores that rise from tile to tile, so that what was summed before is scaled
// again and again; windows that begin and end inside of tiles; widths that no register divides.
#include <cmath>

#include "registry/support.h"

namespace tilewise::tests {
namespace {

// Past two tiles of every kernel, and into the middle of the third.
constexpr std::int64_t kKeys = 1130;

Case long_case(Operation operation, std::int32_t dtype, std::int64_t dim, std::int64_t value_dim) {
  Case c = make_case(operation, dtype, {1, 70, kKeys, 2, 1, dim});
  c.value_dim = value_dim;
  return c;
}

// Scores from 0 for the first key to 200 for the last, or down again: far more than a kernel lets a
// maximum grow by before it scales.
void set_slope(const tilewise_problem& request, std::int64_t dim, bool rises) {
  set_elements(request.q, [&](std::int64_t) { return 1.0; });
  set_elements(request.k, [&](std::int64_t i) {
    const double place = static_cast<double>(i / dim) / static_cast<double>(kKeys);
    return 200 * (rises ? place : 1 - place) / std::sqrt(static_cast<double>(dim));
  });
}

TEST(Tiles, RisingAndFallingScores) {
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

TEST(Tiles, WindowsAndWidths) {
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

TEST(Tiles, OptionsInLaterTiles) {
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

// Past two tiles of queries, and of keys that a backward pass takes together.
TEST(Tiles, ManyQueries) {
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

// Keys in more tiles than the matrix unit's kernel keeps packed at this width, and queries past the
// block that it makes of them; causal, rows that see no key beside rows that do.
TEST(Tiles, MoreKeysThanStayPacked) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    Case c = make_case(Operation::kForward, dtype, {1, 1150, 1100, 1, 1, 256});
    c.causal = dtype == TILEWISE_BF16;
    expect_all_pass(c);
  }
}

// Several sequences, their keys of other lengths; two of them within one tile.
TEST(Tiles, PackedSequences) {
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
