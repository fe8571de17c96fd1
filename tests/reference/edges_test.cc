// Empty sizes, rows without keys, and non-finite values: which results they affect, and which not.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "support.h"
#include "verify/instance.h"
#include "verify/tensor.h"

namespace tilewise::reference_test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kLength = 9;

// One sequence and head, 9 queries and keys.
Case square_case() {
  Case c;
  c.operation = Operation::kBackward;
  c.dtype = TILEWISE_FP32;
  c.q_len = kLength;
  c.k_len = kLength;
  c.head_dim = 3;
  c.value_dim = 2;
  return c;
}

// Sets element (0, row, 0, column) of a tensor (1, S, 1, D), or (row, column) of a contiguous one.
void set(const tilewise_tensor& tensor, std::int64_t row, std::int64_t column, double x) {
  verify::write_element(tensor, row * tensor.strides[tensor.rank == 4 ? 1 : 0] + column, x);
}
void set_row(const tilewise_tensor& tensor, std::int64_t row, double x) {
  for (std::int64_t c = 0; c < tensor.shape[3]; ++c) set(tensor, row, c, x);
}

enum Kind { kAnything, kNumber, kNotANumber, kZero, kMinusInfinity };

bool is(Kind kind, double x) {
  switch (kind) {
    case kNumber:
      return std::isfinite(x);
    case kNotANumber:
      return std::isnan(x);
    case kZero:
      return x == 0;
    case kMinusInfinity:
      return x == -kInfinity;
    default:
      return true;
  }
}

// Expects `kind(row)` of every element of a row.
void expect_rows(const char* name, const tilewise_tensor& tensor, std::int64_t rows,
                 const std::function<Kind(std::int64_t)>& kind) {
  const std::vector<double> values = numbers(tensor);
  const std::int64_t width = static_cast<std::int64_t>(values.size()) / rows;
  for (std::int64_t i = 0; i < rows * width; ++i) {
    const double x = values[static_cast<std::size_t>(i)];
    EXPECT_TRUE(is(kind(i / width), x)) << name << " row " << i / width << ": " << x;
  }
}

// Runs both operations of every rung, with several tiles and with one.
void for_each_run(const Case& c, const std::function<void(const tilewise_problem&)>& prepare,
                  const std::function<void(const tilewise_problem&)>& check) {
  SCOPED_TRACE(verify::describe(c));
  for (const Rung& rung : rungs()) {
    for (const std::int64_t sram : {std::int64_t{120}, std::int64_t{0}}) {
      SCOPED_TRACE(rung.name + std::string(", fast memory of ") + std::to_string(sram));
      verify::Instance instance(c);
      prepare(instance.request());
      for (const Operation operation : {Operation::kForward, Operation::kBackward}) {
        instance.prepare(operation);
        run(rung.kernel(operation), operation, instance.request(), {1, sram, nullptr});
        EXPECT_EQ(instance.damage(operation), "");
      }
      check(instance.request());
    }
  }
}

TEST(NonFinite, VisibleNaNKeyReachesExactlyTheRowsThatSeeIt) {
  Case c = square_case();
  c.causal = true;
  for (const std::int64_t key : {0, 4, 8}) {
    for_each_run(
        c, [&](const tilewise_problem& p) { set(p.k, key, 1, kNaN); },
        [&](const tilewise_problem& p) {
          const auto kind = [&](std::int64_t row) { return row >= key ? kNotANumber : kNumber; };
          expect_rows("out", p.out, kLength, kind);
          expect_rows("lse", p.lse, kLength, kind);
          expect_rows("dq", p.dq, kLength, kind);
        });
  }
}

TEST(NonFinite, NaNStaysWhenALargerScoreFollows) {
  Case c = square_case();
  for_each_run(
      c,
      [&](const tilewise_problem& p) {
        set(p.k, 0, 0, kNaN);
        for (std::int64_t row = 0; row < kLength; ++row) {
          set_row(p.q, row, 1);
          for (std::int64_t key = 1; key < kLength; ++key) {
            set_row(p.k, key, 100 * static_cast<double>(key * key));
          }
        }
      },
      [&](const tilewise_problem& p) {
        expect_rows("out", p.out, kLength, [](std::int64_t) { return kNotANumber; });
        expect_rows("lse", p.lse, kLength, [](std::int64_t) { return kNotANumber; });
      });
}

TEST(NonFinite, NaNValueOfVanishingProbabilityShowsInOutAlone) {
  const Case c = square_case();
  for_each_run(
      c,
      [&](const tilewise_problem& p) {
        for (std::int64_t row = 0; row < kLength; ++row) {
          set_row(p.q, row, 1);
          set_row(p.k, row, row == 2 ? -1000 : 1);
        }
        set(p.v, 2, 0, kNaN);
      },
      [&](const tilewise_problem& p) {
        const std::vector<double> out = numbers(p.out);
        for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i % 2 == 0) << i;
        expect_rows("lse", p.lse, kLength, [](std::int64_t) { return kNumber; });
      });
}

TEST(NonFinite, MaskedKeysReachNothing) {
  for (const double poison : {kNaN, kInfinity, -kInfinity}) {
    Case boolean = square_case();
    boolean.mask = {true, 1, {true, true, true, true}};
    Case minus_infinity = square_case();
    minus_infinity.bias = {true, 1, {true, true, true, true}};
    minus_infinity.gradients = verify::kDQ | verify::kDK | verify::kDV;
    for (const Case& c : {boolean, minus_infinity}) {
      for_each_run(
          c,
          [&](const tilewise_problem& p) {
            for (std::int64_t key = 0; key < kLength; ++key) {
              const bool masked = key == 0 || key == 4 || key == 8;
              if (p.mask.rank != 0) static_cast<std::uint8_t*>(p.mask.data)[key] = masked ? 0 : 1;
              if (p.bias.rank != 0) set(p.bias, 0, key, masked ? -kInfinity : 0.5);
              if (!masked) continue;
              // A bias of -inf masks any finite score, but a NaN of q.k stays NaN.
              if (p.mask.rank != 0) set_row(p.k, key, poison);
              set_row(p.v, key, poison);
            }
          },
          [&](const tilewise_problem& p) {
            const auto number = [](std::int64_t) { return kNumber; };
            const auto gradient = [](std::int64_t key) { return key % 4 == 0 ? kZero : kNumber; };
            expect_rows("out", p.out, kLength, number);
            expect_rows("lse", p.lse, kLength, number);
            expect_rows("dq", p.dq, kLength, number);
            expect_rows("dk", p.dk, kLength, gradient);
            expect_rows("dv", p.dv, kLength, gradient);
          });
    }
  }
}

TEST(NonFinite, KeysBeyondTheEndReachNothing) {
  Case c = square_case();
  c.used = {5};
  for_each_run(
      c,
      [&](const tilewise_problem& p) {
        for (std::int64_t key = 5; key < kLength; ++key) {
          set_row(p.k, key, kNaN);
          set_row(p.v, key, kInfinity);
        }
      },
      [&](const tilewise_problem& p) {
        expect_rows("out", p.out, kLength, [](std::int64_t) { return kNumber; });
        expect_rows("dq", p.dq, kLength, [](std::int64_t) { return kNumber; });
        expect_rows("dk", p.dk, kLength,
                    [](std::int64_t key) { return key < 5 ? kNumber : kZero; });
        expect_rows("dv", p.dv, kLength,
                    [](std::int64_t key) { return key < 5 ? kNumber : kZero; });
      });
}

TEST(NonFinite, QueryAndItsGradientReachOnlyTheirRowAndItsKeys) {
  Case c = square_case();
  c.causal = true;
  for_each_run(
      c,
      [&](const tilewise_problem& p) {
        set(p.q, 3, 0, kNaN);
        set(p.dout, 3, 0, kNaN);
      },
      [&](const tilewise_problem& p) {
        const auto kind = [](std::int64_t row) { return row == 3 ? kNotANumber : kNumber; };
        expect_rows("out", p.out, kLength, kind);
        expect_rows("lse", p.lse, kLength, kind);
        expect_rows("dq", p.dq, kLength, kind);
        expect_rows("dk", p.dk, kLength,
                    [](std::int64_t key) { return key <= 3 ? kNotANumber : kNumber; });
        expect_rows("dv", p.dv, kLength,
                    [](std::int64_t key) { return key <= 3 ? kNotANumber : kNumber; });
      });
}

TEST(NonFinite, InfiniteScoreGivesNaN) {
  Case c = square_case();
  c.bias = {true, 2, {true, true, true, true}};
  for_each_run(
      c, [&](const tilewise_problem& p) { set(p.bias, 6, 1, kInfinity); },
      [&](const tilewise_problem& p) {
        const auto kind = [](std::int64_t row) { return row == 6 ? kNotANumber : kNumber; };
        expect_rows("out", p.out, kLength, kind);
        expect_rows("lse", p.lse, kLength, kind);
      });
}

TEST(Empty, RowsWithoutKeysGiveZeroAndMinusInfinity) {
  Case c = square_case();
  c.causal = true;
  c.q_len = 12;  // bottom-right alignment: the first three rows see nothing
  c.dlse = true;
  for_each_run(
      c, [](const tilewise_problem&) {},
      [&](const tilewise_problem& p) {
        const auto zero = [](std::int64_t row) { return row < 3 ? kZero : kNumber; };
        expect_rows("out", p.out, 12, zero);
        expect_rows("lse", p.lse, 12,
                    [](std::int64_t row) { return row < 3 ? kMinusInfinity : kNumber; });
        expect_rows("dq", p.dq, 12, zero);
        expect_rows("dk", p.dk, kLength, [](std::int64_t) { return kNumber; });
      });
}

TEST(Empty, RowsWithoutKeysHaveTheLseOfTheSink) {
  Case c = square_case();
  c.k_len = 0;
  c.sink = true;
  c.dlse = true;
  for_each_run(
      c, [](const tilewise_problem&) {},
      [&](const tilewise_problem& p) {
        expect_rows("out", p.out, kLength, [](std::int64_t) { return kZero; });
        expect_rows("dq", p.dq, kLength, [](std::int64_t) { return kZero; });
        const double sink = numbers(p.sink)[0];
        for (const double lse : numbers(p.lse)) EXPECT_NEAR(lse, sink, 1e-6);
        // Every row has LSE = sink, so dsink is the sum of dLSE.
        double sum = 0;
        for (const double dlse : numbers(p.dlse)) sum += dlse;
        EXPECT_NEAR(numbers(p.dsink)[0], sum, 1e-5);
      });
}

TEST(Empty, EverySizeMayBeZero) {
  for (int size = 0; size < 4; ++size) {
    Case c = square_case();
    c.bias = {true, 4, {false, false, true, true}};
    c.sink = true;
    if (size == 0) c.batch = 0;
    if (size == 1) c.q_len = 0;
    if (size == 2) c.k_len = 0;
    if (size == 3) c.heads = c.kv_heads = 0;
    for_each_run(
        c, [](const tilewise_problem&) {},
        [&](const tilewise_problem& p) {
          for (const tilewise_tensor* tensor : {&p.out, &p.dq, &p.dk, &p.dv, &p.dbias}) {
            for (const double x : numbers(*tensor)) EXPECT_EQ(x, 0);
          }
        });
  }
}

TEST(Empty, EachGradientMayBeLeftOut) {
  for (const unsigned gradients : {0u, 1u, 2u, 4u, 8u, 16u, 6u}) {
    Case c = square_case();
    c.bias.present = true;
    c.sink = true;
    const auto nothing = [](const tilewise_problem&) {};
    std::vector<std::vector<double>> expected;
    const auto results = [](const tilewise_problem& p) {
      return std::vector<std::vector<double>>{numbers(p.dq), numbers(p.dk), numbers(p.dv),
                                              numbers(p.dbias), numbers(p.dsink)};
    };
    std::vector<std::vector<std::vector<double>>> full;
    for_each_run(c, nothing, [&](const tilewise_problem& p) { full.push_back(results(p)); });
    c.gradients = gradients;
    std::size_t i = 0;
    for_each_run(c, nothing, [&](const tilewise_problem& p) {
      const auto some = results(p);
      for (std::size_t t = 0; t < some.size(); ++t) {
        if (gradients >> t & 1u) {
          EXPECT_EQ(some[t], full[i][t]);
        } else {
          EXPECT_TRUE(some[t].empty());
        }
      }
      ++i;
    });
  }
}

}  // namespace
}  // namespace tilewise::reference_test
