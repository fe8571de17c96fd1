// simd/packing.h, packed_columns.h, conversion.h, finite.h and inner_product.h.
#include "cpu/support.h"

namespace tilewise::cpu {
namespace {

template <class P>
class Packing : public ::testing::Test {};
TYPED_TEST_SUITE(Packing, Parts, PartName);
template <class P>
class Conversion : public ::testing::Test {};
TYPED_TEST_SUITE(Conversion, Parts, PartName);
template <class P>
class Finite : public ::testing::Test {};
TYPED_TEST_SUITE(Finite, Parts, PartName);
template <class P>
class InnerProduct : public ::testing::Test {};
TYPED_TEST_SUITE(InnerProduct, Parts, PartName);

constexpr std::int64_t kWidths[] = {1, 3, 4, 7, 8, 15, 16, 17, 33, 64, 80};

TYPED_TEST(Packing, APanelIsTheTransposeTimesTheFactor) {
  using T = typename TypeParam::Number;
  const std::int64_t lanes = TypeParam::probes().panel_width;
  for (const std::int32_t dtype : kFloatingDtypes) {
    if (!is_input<T>(dtype)) continue;
    for (const std::int64_t width : kWidths) {
      for (const std::int64_t count : {std::int64_t{1}, lanes / 2 + 1, lanes}) {
        const RowsOfDtype rows(dtype, count, width, width + 5, 1);
        Array<T> panel = poisoned<T>(width * lanes + 8);
        TypeParam::probes().pack_panel(rows.rows(), T(-1), panel.data());
        for (std::int64_t c = 0; c < width; ++c) {
          for (std::int64_t lane = 0; lane < lanes; ++lane) {
            const T expected = lane < count ? -static_cast<T>(rows.at(lane, c)) : T(0);
            ASSERT_EQ(panel[c * lanes + lane], expected) << count << " x " << width;
          }
        }
        for (std::int64_t i = width * lanes; i < width * lanes + 8; ++i)
          ASSERT_EQ(panel[i], kPoison<T>) << count << " x " << width;
      }
    }
  }
}

TYPED_TEST(Packing, UnpackingRoundsAsAStoreOfOneNumberAndWritesNothingElse) {
  using T = typename TypeParam::Number;
  const std::int64_t lanes = TypeParam::probes().panel_width;
  for (const std::int32_t dtype : kFloatingDtypes) {
    if (!is_input<T>(dtype)) continue;
    for (const std::int64_t width : kWidths) {
      const std::int64_t count = lanes - 1;
      const Array<T> panel = random_numbers<T>(width * lanes, 2);
      const Array<T> factor = random_numbers<T>(lanes, 3);
      RowsOfDtype rows(dtype, count, width, width + 3, 4);
      RowsOfDtype expected(dtype, count, width, width + 3, 4);
      for (std::int64_t r = 0; r < count; ++r) {
        for (std::int64_t c = 0; c < width; ++c)
          expected.set(r, c, static_cast<double>(panel[c * lanes + r] * factor[r]));
      }
      TypeParam::probes().unpack_panel(rows.rows(), factor.data(), panel.data());
      for (std::int64_t r = 0; r < count; ++r) {
        for (std::int64_t c = 0; c < width + 3; ++c)
          ASSERT_EQ(rows.at(r, c), expected.at(r, c))
              << "dtype " << dtype << ", " << r << ", " << c;
      }
    }
  }
}

TYPED_TEST(Packing, ColumnsAreInBlocksPaddedWithZeros) {
  using T = typename TypeParam::Number;
  const std::int64_t block_columns = TypeParam::all().gemm_rows;
  for (const std::int32_t dtype : kFloatingDtypes) {
    if (!is_input<T>(dtype)) continue;
    for (const std::int64_t width : kWidths) {
      const std::int64_t count = 13;
      const RowsOfDtype rows(dtype, count, width, width + 2, 5);
      Array<T> data = poisoned<T>(TypeParam::probes().packed_size(width));
      ASSERT_TRUE(TypeParam::probes().pack_columns(rows.rows(), data.data()));
      const std::int64_t whole = (width + block_columns - 1) / block_columns * block_columns;
      for (std::int64_t r = 0; r < count; ++r) {
        for (std::int64_t c = 0; c < whole; ++c) {
          const std::int64_t at = c / block_columns * TypeParam::probes().packed_block +
                                  r * block_columns + c % block_columns;
          ASSERT_EQ(data[at], c < width ? static_cast<T>(rows.at(r, c)) : T(0)) << r << ", " << c;
        }
      }
    }
  }
}

TYPED_TEST(Packing, ColumnsThatAreNotFiniteAreFound) {
  using T = typename TypeParam::Number;
  const std::int64_t width = 19;
  for (const std::int32_t dtype : kFloatingDtypes) {
    if (!is_input<T>(dtype)) continue;
    for (const double number : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
      for (const std::int64_t column : {std::int64_t{0}, width - 1}) {
        RowsOfDtype rows(dtype, 8, width, width, 6);
        rows.set(5, column, number);
        Array<T> data = poisoned<T>(TypeParam::probes().packed_size(width));
        ASSERT_FALSE(TypeParam::probes().pack_columns(rows.rows(), data.data())) << number;
      }
    }
  }
}

TYPED_TEST(Packing, DenormalNumbersAreMultipliedExactly) {
  using T = typename TypeParam::Number;
  const T least = std::numeric_limits<T>::denorm_min();
  const T normal = std::numeric_limits<T>::min();
  const T inf = std::numeric_limits<T>::infinity();
  const T numbers[] = {least,  -least, 5 * least,    normal - least, least - normal,
                       normal, T(0),   T(-0.0),      T(1),           T(-3.25),
                       inf,    -inf,   7077 * least, -normal / 2};
  constexpr int kCount = sizeof(numbers) / sizeof(T);
  const std::int64_t lanes = TypeParam::probes().lanes;
  for (const int exponent :
       {0, 1, 24, 53, sizeof(T) == 8 ? 996 : 100, sizeof(T) == 8 ? 1022 : 126}) {
    const T factor = static_cast<T>(std::ldexp(1.0, exponent));
    for (int first = 0; first < kCount; ++first) {
      Array<T> from(lanes);
      Array<T> to(lanes);
      for (std::int64_t i = 0; i < lanes; ++i) from[i] = numbers[(first + i) % kCount];
      TypeParam::probes().multiply_exactly(from.data(), factor, to.data());
      for (std::int64_t i = 0; i < lanes; ++i)
        ASSERT_TRUE(same_bits(to[i], std::ldexp(from[i], exponent))) << from[i] << ", " << exponent;
    }
  }
}

TYPED_TEST(Packing, ContiguousRowsOfTheArithmeticTypeStayInPlace) {
  using T = typename TypeParam::Number;
  const std::int32_t dtype = sizeof(T) == 8 ? TILEWISE_FP64 : TILEWISE_FP32;
  const RowsOfDtype contiguous(dtype, 4, 24, 24, 7);
  Array<T> stage = poisoned<T>(4 * 24);
  EXPECT_EQ(TypeParam::probes().stage_rows(contiguous.rows(), stage.data()),
            static_cast<const T*>(contiguous.data()));
  EXPECT_EQ(stage[0], kPoison<T>);
  const RowsOfDtype apart(dtype, 4, 24, 25, 8);
  ASSERT_EQ(TypeParam::probes().stage_rows(apart.rows(), stage.data()), stage.data());
  for (std::int64_t r = 0; r < 4; ++r) {
    for (std::int64_t c = 0; c < 24; ++c)
      ASSERT_EQ(stage[r * 24 + c], static_cast<T>(apart.at(r, c))) << r << ", " << c;
  }
}

TYPED_TEST(Conversion, EveryBitPatternOf16BitsIsLoadedAsItsNumber) {
  using T = typename TypeParam::Number;
  const std::int64_t lanes = TypeParam::probes().lanes;
  Array<std::uint16_t> bits(lanes);
  Array<T> numbers(lanes);
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    for (std::int64_t first = 0; first < 65536; first += lanes) {
      for (std::int64_t i = 0; i < lanes; ++i) bits[i] = static_cast<std::uint16_t>(first + i);
      TypeParam::probes().load(dtype, bits.data(), numbers.data());
      for (std::int64_t i = 0; i < lanes; ++i) {
        const float expected = dtype == TILEWISE_BF16 ? math::to_float(math::BFloat16{bits[i]})
                                                      : math::to_float(math::Float16{bits[i]});
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(numbers[i])) << bits[i];
        } else {
          ASSERT_TRUE(same_bits(numbers[i], static_cast<T>(expected))) << bits[i];
        }
      }
    }
  }
}

// The numbers that lie half way between two of 16 bits, those next to them, and the ends of the
// range.
TYPED_TEST(Conversion, StoresRoundToNearestEven) {
  using T = typename TypeParam::Number;
  const std::int64_t lanes = TypeParam::probes().lanes;
  Array<T> numbers(lanes);
  Array<std::uint16_t> stored(lanes);
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    const std::uint32_t step = dtype == TILEWISE_BF16 ? 0x8000u : 0x1000u;
    Array<float> cases = {0.0f,       -0.0f,
                          HUGE_VALF,  -HUGE_VALF,
                          65504.0f,   65519.0f,
                          65520.0f,   1e-7f,
                          0x1p-24f,   0x1p-25f,
                          0x1.8p-24f, 0x1p-126f,
                          0x1p-149f,  std::numeric_limits<float>::max()};
    for (std::uint32_t i = 0; i < 4000; ++i) {
      for (const std::uint32_t offset : {0u, 0xFFFFFFFFu, 1u}) {
        cases.push_back(
            math::float_of(0x38000000u + i * 0x3001u * step / 0x1000u / 16 * 16 + offset));
        cases.push_back(math::float_of((0x38000000u + i * step) + offset));
      }
    }
    while (cases.size() % lanes != 0) cases.push_back(1.0f);
    for (std::int64_t first = 0; first < cases.size(); first += lanes) {
      for (std::int64_t i = 0; i < lanes; ++i) numbers[i] = static_cast<T>(cases[first + i]);
      TypeParam::probes().store(dtype, numbers.data(), stored.data());
      for (std::int64_t i = 0; i < lanes; ++i) {
        const float x = cases[first + i];
        const std::uint16_t expected =
            dtype == TILEWISE_BF16 ? math::to_bfloat16(x).bits : math::to_float16(x).bits;
        ASSERT_EQ(stored[i], expected) << x;
      }
    }
  }
}

TYPED_TEST(Conversion, ANaNStaysANaN) {
  using T = typename TypeParam::Number;
  const std::int64_t lanes = TypeParam::probes().lanes;
  const Array<T> numbers(lanes, std::numeric_limits<T>::quiet_NaN());
  Array<std::uint16_t> stored(lanes);
  TypeParam::probes().store(TILEWISE_BF16, numbers.data(), stored.data());
  for (const std::uint16_t bits : stored)
    EXPECT_TRUE(std::isnan(math::to_float(math::BFloat16{bits})));
  TypeParam::probes().store(TILEWISE_FP16, numbers.data(), stored.data());
  for (const std::uint16_t bits : stored)
    EXPECT_TRUE(std::isnan(math::to_float(math::Float16{bits})));
}

TYPED_TEST(Finite, OneNaNOrInfinityAnywhereInTheLanesIsFound) {
  using T = typename TypeParam::Number;
  const std::int64_t width = TypeParam::probes().panel_width;
  const std::int64_t lanes = width - 1;
  Array<T> panel = random_numbers<T>(3 * width, 9);
  ASSERT_TRUE(TypeParam::probes().all_finite(panel.data(), 3, lanes));
  for (const T bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                      -std::numeric_limits<T>::infinity()}) {
    for (std::int64_t i = 0; i < panel.size(); ++i) {
      const T good = panel[i];
      panel[i] = bad;
      const bool counts = i % width < lanes;
      ASSERT_EQ(TypeParam::probes().all_finite(panel.data(), 3, lanes), !counts) << i;
      panel[i] = good;
    }
  }
}

TYPED_TEST(Finite, ARowIsCheckedToItsEndAndNotBeyond) {
  using T = typename TypeParam::Number;
  for (const std::int64_t width : kWidths) {
    Array<T> row = random_numbers<T>(width + 1, 10);
    row[width] = std::numeric_limits<T>::quiet_NaN();
    ASSERT_TRUE(TypeParam::probes().row_is_finite(row.data(), width)) << width;
    for (std::int64_t c = 0; c < width; ++c) {
      const T good = row[c];
      row[c] = std::numeric_limits<T>::infinity();
      ASSERT_FALSE(TypeParam::probes().row_is_finite(row.data(), width)) << width << ", " << c;
      row[c] = good;
    }
  }
}

TYPED_TEST(InnerProduct, MatchesAPlainDoubleLoop) {
  using T = typename TypeParam::Number;
  for (const std::int64_t width : {0, 1, 2, 15, 16, 17, 31, 32, 64, 100, 128}) {
    const Array<T> a = random_numbers<T>(width, 11);
    const Array<T> b = random_numbers<T>(width, 12);
    double sum = 0;
    double size = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
      size += std::abs(static_cast<double>(a[c]) * static_cast<double>(b[c]));
    }
    EXPECT_NEAR(static_cast<double>(TypeParam::probes().inner_product(a.data(), b.data(), width)),
                sum, 16 * static_cast<double>(std::numeric_limits<T>::epsilon()) * size)
        << width;
  }
}

}  // namespace
}  // namespace tilewise::cpu
