// simd/gemm.h and common/gemm_masked.h against a plain loop.
#include "cpu/support.h"

namespace tilewise::cpu {
namespace {

template <class P>
class Gemm : public ::testing::Test {};
TYPED_TEST_SUITE(Gemm, Parts, PartName);

// Operands of one product, in rows and as packed columns, and where the result goes.
template <class P>
struct Operands {
  using T = typename P::Number;
  std::int64_t m_count, depth, width;
  Array<T> a;       // (m_count, depth)
  Array<T> packed;  // packed columns of a^T
  Array<T> b;       // (depth, width)
  Array<T> c;       // (m_count rounded up, width), poisoned

  Operands(std::int64_t m, std::int64_t k, std::uint64_t seed)
      : m_count(m), depth(k), width(P::probes().panel_width) {
    a = random_numbers<T>(m * k, seed);
    b = random_numbers<T>(k * width, seed + 1);
    const std::int64_t rows = P::all().gemm_rows;
    const std::int64_t whole = (m + rows - 1) / rows * rows;
    c = poisoned<T>(whole * width);
    packed = Array<T>(P::probes().packed_size(m), T(0));
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t t = 0; t < k; ++t)
        packed[i / rows * P::probes().packed_block + t * rows + i % rows] = a[i * k + t];
    }
  }

  double expected(std::int64_t m, std::int64_t lane) const {
    double sum = 0;
    for (std::int64_t t = 0; t < depth; ++t)
      sum += static_cast<double>(a[m * depth + t]) * static_cast<double>(b[t * width + lane]);
    return sum;
  }
  // The sum of the sizes of the terms: what an error is measured in.
  double size(std::int64_t m, std::int64_t lane) const {
    double sum = 0;
    for (std::int64_t t = 0; t < depth; ++t)
      sum += std::abs(static_cast<double>(a[m * depth + t]) *
                      static_cast<double>(b[t * width + lane]));
    return sum;
  }
  // The product in the arithmetic type, in the order of t.
  T in_order(std::int64_t m, std::int64_t lane, T start = T(0)) const {
    T sum = start;
    for (std::int64_t t = 0; t < depth; ++t)
      sum = multiply_add<T>(P::all().fused, a[m * depth + t], b[t * width + lane], sum);
    return sum;
  }
  double tolerance(std::int64_t m, std::int64_t lane) const {
    return static_cast<double>(std::numeric_limits<T>::epsilon()) *
           (static_cast<double>(depth) + 1) * size(m, lane);
  }
};

constexpr std::int64_t kRowCounts[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 23};
constexpr std::int64_t kDepths[] = {0, 1, 2, 3, 31, 64, 127, 128};

TYPED_TEST(Gemm, MatchesAPlainDoubleLoop) {
  for (const std::int64_t m_count : kRowCounts) {
    for (const std::int64_t depth : kDepths) {
      Operands<TypeParam> o(m_count, depth, 1);
      TypeParam::probes().gemm(o.a.data(), depth, m_count, o.b.data(), depth, o.c.data());
      for (std::int64_t m = 0; m < m_count; ++m) {
        for (std::int64_t lane = 0; lane < o.width; ++lane) {
          ASSERT_NEAR(static_cast<double>(o.c[m * o.width + lane]), o.expected(m, lane),
                      o.tolerance(m, lane))
              << m_count << " x " << depth << ", row " << m << ", lane " << lane;
        }
      }
    }
  }
}

TYPED_TEST(Gemm, SumsRunInTheOrderOfTheDepth) {
  for (const std::int64_t m_count : kRowCounts) {
    Operands<TypeParam> o(m_count, 128, 2);
    TypeParam::probes().gemm(o.a.data(), o.depth, m_count, o.b.data(), o.depth, o.c.data());
    for (std::int64_t m = 0; m < m_count; ++m) {
      for (std::int64_t lane = 0; lane < o.width; ++lane)
        ASSERT_EQ(o.c[m * o.width + lane], o.in_order(m, lane)) << m << ", " << lane;
    }
  }
}

TYPED_TEST(Gemm, RowsAfterTheLastOneAreNotWritten) {
  using T = typename TypeParam::Number;
  for (const std::int64_t m_count : kRowCounts) {
    Operands<TypeParam> o(m_count, 3, 3);
    TypeParam::probes().gemm(o.a.data(), o.depth, m_count, o.b.data(), o.depth, o.c.data());
    for (std::int64_t i = m_count * o.width; i < o.c.size(); ++i)
      ASSERT_EQ(o.c[i], kPoison<T>) << m_count << " rows, element " << i;
  }
}

TYPED_TEST(Gemm, OnlyTheRegistersInUseAreWritten) {
  using T = typename TypeParam::Number;
  Operands<TypeParam> o(11, 5, 4);
  TypeParam::probes().gemm_one_register(o.a.data(), o.depth, o.m_count, o.b.data(), o.depth,
                                        o.c.data());
  for (std::int64_t m = 0; m < o.m_count; ++m) {
    for (std::int64_t lane = 0; lane < o.width; ++lane) {
      const T expected = lane < TypeParam::probes().lanes ? o.in_order(m, lane) : kPoison<T>;
      ASSERT_EQ(o.c[m * o.width + lane], expected) << m << ", " << lane;
    }
  }
}

TYPED_TEST(Gemm, ALaneDoesNotDependOnTheOthers) {
  using T = typename TypeParam::Number;
  Operands<TypeParam> o(9, 33, 5);
  TypeParam::probes().gemm(o.a.data(), o.depth, o.m_count, o.b.data(), o.depth, o.c.data());
  const Array<T> before = o.c;
  const std::int64_t spared = o.width - 2;
  for (std::int64_t t = 0; t < o.depth; ++t) {
    for (std::int64_t lane = 0; lane < o.width; ++lane)
      if (lane != spared) o.b[t * o.width + lane] = std::numeric_limits<T>::quiet_NaN();
  }
  TypeParam::probes().gemm(o.a.data(), o.depth, o.m_count, o.b.data(), o.depth, o.c.data());
  for (std::int64_t m = 0; m < o.m_count; ++m) {
    ASSERT_TRUE(same_bits(o.c[m * o.width + spared], before[m * o.width + spared])) << m;
    ASSERT_TRUE(std::isnan(o.c[m * o.width])) << m;
  }
}

TYPED_TEST(Gemm, PackedColumnsGiveTheBitsOfRows) {
  using T = typename TypeParam::Number;
  for (const std::int64_t m_count : kRowCounts) {
    for (const std::int64_t depth : kDepths) {
      Operands<TypeParam> o(m_count, depth, 6);
      TypeParam::probes().gemm_packed(o.packed.data(), m_count, o.b.data(), depth, o.c.data(),
                                      nullptr);
      for (std::int64_t i = 0; i < o.c.size(); ++i) {
        const std::int64_t m = i / o.width;
        const T expected = m < m_count ? o.in_order(m, i % o.width) : T(0);
        ASSERT_EQ(o.c[i], expected) << m_count << " x " << depth << ", row " << m;
      }
    }
  }
}

TYPED_TEST(Gemm, TheCompletedSumIsAddedToTheRescaledOutput) {
  using T = typename TypeParam::Number;
  Operands<TypeParam> o(10, 17, 7);
  o.c = random_numbers<T>(o.c.size(), 8);
  const Array<T> before = o.c;
  const Array<T> factor = random_numbers<T>(o.width, 9);
  TypeParam::probes().gemm_packed(o.packed.data(), o.m_count, o.b.data(), o.depth, o.c.data(),
                                  factor.data());
  for (std::int64_t m = 0; m < o.m_count; ++m) {
    for (std::int64_t lane = 0; lane < o.width; ++lane) {
      const T expected = multiply_add<T>(TypeParam::all().fused, before[m * o.width + lane],
                                         factor[lane], o.in_order(m, lane));
      ASSERT_EQ(o.c[m * o.width + lane], expected) << m << ", " << lane;
    }
  }
}

TYPED_TEST(Gemm, ADepthCutInPiecesGivesTheSameBitsIfItAccumulates) {
  using T = typename TypeParam::Number;
  const TypedProbes<T>& probes = TypeParam::probes();
  for (std::int64_t registers = 1; registers <= 2 * probes.panel_registers + 1; ++registers) {
    const std::int64_t width = registers * probes.lanes;
    const std::int64_t m_count = 5;
    const std::int64_t depth = 21;
    const Array<T> a = random_numbers<T>(m_count * depth, 10);
    const Array<T> b = random_numbers<T>(depth * width, 11);
    Array<T> whole = random_numbers<T>(m_count * width, 12);
    Array<T> pieces = whole;
    probes.gemm_wide(a.data(), depth, m_count, b.data(), width, whole.data(), registers, depth,
                     true);
    for (std::int64_t at = 0; at < depth; at += 8) {
      probes.gemm_wide(a.data() + at, depth, m_count, b.data() + at * width, width, pieces.data(),
                       registers, std::min<std::int64_t>(8, depth - at), true);
    }
    for (std::int64_t i = 0; i < whole.size(); ++i)
      ASSERT_TRUE(same_bits(whole[i], pieces[i])) << registers << " registers, element " << i;
  }
}

TYPED_TEST(Gemm, AWideProductAddsTheCompletedSum) {
  using T = typename TypeParam::Number;
  Operands<TypeParam> o(6, 19, 13);
  Array<T> c = random_numbers<T>(o.m_count * o.width, 14);
  const Array<T> before = c;
  TypeParam::probes().gemm_wide(o.a.data(), o.depth, o.m_count, o.b.data(), o.width, c.data(),
                                TypeParam::probes().panel_registers, o.depth, false);
  for (std::int64_t m = 0; m < o.m_count; ++m) {
    for (std::int64_t lane = 0; lane < o.width; ++lane)
      ASSERT_EQ(c[m * o.width + lane], before[m * o.width + lane] + o.in_order(m, lane));
  }
}

// Registers begin and end at multiples of the block's rows, later ones later: the edge of a causal
// mask (all end at the end), and of a window.
template <class P>
Array<std::pair<Array<std::int64_t>, Array<std::int64_t>>> edges(std::int64_t rows) {
  const std::int64_t step = P::all().gemm_rows;
  const std::int64_t registers = P::probes().panel_registers;
  Array<std::int64_t> zeros(registers, 0), last(registers, rows), rising, falling;
  for (std::int64_t n = 0; n < registers; ++n) {
    rising.push_back(n * step);
    falling.push_back(std::min(rows, (registers + n) * step));
  }
  return {{rising, last}, {zeros, falling}, {rising, falling}};
}

TYPED_TEST(Gemm, MaskedRegistersBecomeZeroAndTheOthersKeepTheirBits) {
  using T = typename TypeParam::Number;
  const std::int64_t rows = 6 * TypeParam::all().gemm_rows - 1;
  for (const auto& [begin, end] : edges<TypeParam>(rows)) {
    Operands<TypeParam> o(rows, 32, 15);
    TypeParam::probes().gemm_masked(o.a.data(), o.depth, rows, o.b.data(), o.depth, begin.data(),
                                    end.data(), o.c.data());
    for (std::int64_t m = 0; m < rows; ++m) {
      for (std::int64_t lane = 0; lane < o.width; ++lane) {
        const std::int64_t n = lane / TypeParam::probes().lanes;
        const bool active = m >= begin[n] && m < end[n];
        ASSERT_EQ(o.c[m * o.width + lane], active ? o.in_order(m, lane) : T(0))
            << m << ", " << lane;
      }
    }
  }
}

TYPED_TEST(Gemm, LeavingOutMaskedTermsChangesNoBit) {
  using T = typename TypeParam::Number;
  const std::int64_t depth = 6 * TypeParam::all().gemm_rows - 1;
  for (const auto& [begin, end] : edges<TypeParam>(depth)) {
    Operands<TypeParam> o(10, depth, 16);
    for (std::int64_t t = 0; t < depth; ++t) {
      for (std::int64_t lane = 0; lane < o.width; ++lane) {
        const std::int64_t n = lane / TypeParam::probes().lanes;
        if (t < begin[n] || t >= end[n]) o.b[t * o.width + lane] = T(0);
      }
    }
    TypeParam::probes().gemm_packed_masked(o.packed.data(), o.m_count, o.b.data(), depth,
                                           begin.data(), end.data(), o.c.data());
    for (std::int64_t m = 0; m < o.m_count; ++m) {
      for (std::int64_t lane = 0; lane < o.width; ++lane)
        ASSERT_EQ(o.c[m * o.width + lane], o.in_order(m, lane)) << m << ", " << lane;
    }
  }
}

// Rows 5 and 11 of the left operand are not finite. Each lane sees two rows of three, and the right
// operand is 0 in the others.
TYPED_TEST(Gemm, NumbersThatALaneDoesNotSeeChangeNoBitOfIt) {
  using T = typename TypeParam::Number;
  using Word = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;
  Operands<TypeParam> o(10, 23, 16);
  const std::int64_t rows = TypeParam::all().gemm_rows;
  for (std::int64_t m = 0; m < o.m_count; ++m) {
    for (const std::int64_t t : {5, 11}) {
      const T number =
          t == 5 ? std::numeric_limits<T>::quiet_NaN() : -std::numeric_limits<T>::infinity();
      o.packed[m / rows * TypeParam::probes().packed_block + t * rows + m % rows] = number;
      o.a[m * o.depth + t] = number;
    }
  }
  const auto sees = [](std::int64_t t, std::int64_t lane) { return (t + lane) % 3 != 0; };
  Array<Word> seen(o.depth * o.width, Word(0));
  for (std::int64_t i = 0; i < seen.size(); ++i) {
    if (sees(i / o.width, i % o.width)) {
      seen[i] = ~Word(0);
    } else {
      o.b[i] = T(0);
    }
  }
  o.c = random_numbers<T>(o.c.size(), 17);
  const Array<T> before = o.c;
  TypeParam::probes().gemm_packed_seen(o.packed.data(), o.m_count, o.b.data(), o.depth, seen.data(),
                                       o.c.data());
  for (std::int64_t m = 0; m < o.m_count; ++m) {
    for (std::int64_t lane = 0; lane < o.width; ++lane) {
      T sum = T(0);
      for (std::int64_t t = 0; t < o.depth; ++t) {
        if (sees(t, lane))
          sum = multiply_add<T>(TypeParam::all().fused, o.a[m * o.depth + t],
                                o.b[t * o.width + lane], sum);
      }
      const T found = o.c[m * o.width + lane];
      if (sees(5, lane) || sees(11, lane)) {
        ASSERT_FALSE(std::isfinite(found)) << m << ", " << lane;
      } else {
        ASSERT_EQ(found, before[m * o.width + lane] + sum) << m << ", " << lane;
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::cpu
