// simd/packing_bf16.h and avx512_bf16/dot.h: pairs of bf16 and vdpbf16ps.
#include "cpu/support.h"

namespace tilewise::cpu {
namespace {

class Bf16 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (bf16_probes() == nullptr) GTEST_SKIP() << "this machine lacks AVX512-BF16";
  }
  const Bf16Probes& probes() const { return *bf16_probes(); }
};

std::uint16_t bits_of(const RowsOfDtype& rows, std::int64_t r, std::int64_t c) {
  return math::to_bfloat16(static_cast<float>(rows.at(r, c))).bits;
}
std::uint32_t pair_of(std::uint16_t first, std::uint16_t second) {
  return first | static_cast<std::uint32_t>(second) << 16;
}

constexpr std::int64_t kDotWidths[] = {1, 2, 3, 16, 31, 32, 33, 64, 77, 128};

TEST_F(Bf16, APanelHoldsPairsOfColumnsAndZerosAfterTheEnds) {
  const std::int64_t lanes = probes().panel_width;
  for (const std::int64_t width : kDotWidths) {
    for (const std::int64_t count : {std::int64_t{1}, lanes - 3, lanes}) {
      const RowsOfDtype rows(TILEWISE_BF16, count, width, width + 3, 1);
      Array<std::uint32_t> panel((width + 1) / 2 * lanes + 4, 0xDEADBEEFu);
      probes().pack_panel(rows.rows(), 1.0f, panel.data());
      for (std::int64_t c = 0; c < width; c += 2) {
        for (std::int64_t lane = 0; lane < lanes; ++lane) {
          const bool there = lane < count;
          const std::uint32_t expected =
              pair_of(there ? bits_of(rows, lane, c) : 0,
                      there && c + 1 < width ? bits_of(rows, lane, c + 1) : 0);
          ASSERT_EQ(panel[c / 2 * lanes + lane], expected) << width << ", " << c << ", " << lane;
        }
      }
      for (std::int64_t i = (width + 1) / 2 * lanes; i < panel.size(); ++i)
        ASSERT_EQ(panel[i], 0xDEADBEEFu);
    }
  }
}

TEST_F(Bf16, ColumnsHoldPairsOfRowsAndNonFiniteRowsAreFound) {
  const std::int64_t block = probes().gemm_rows;
  for (const std::int64_t width : kDotWidths) {
    const std::int64_t count = 7;
    RowsOfDtype rows(TILEWISE_BF16, count, width, width, 2);
    Array<std::uint32_t> data(probes().packed_size(width), 0xDEADBEEFu);
    ASSERT_TRUE(probes().pack_columns(rows.rows(), data.data()));
    rows.set(4, width - 1, std::nan(""));
    ASSERT_FALSE(probes().pack_columns(rows.rows(), data.data()));
    const auto bits = [&](std::int64_t r, std::int64_t c) {
      return r < count ? bits_of(rows, r, c) : std::uint16_t{0};
    };
    for (std::int64_t r = 0; r < count; r += 2) {
      for (std::int64_t c = 0; c < width; ++c) {
        const std::int64_t at = c / block * probes().packed_block + r / 2 * block + c % block;
        ASSERT_EQ(data[at], pair_of(bits(r, c), bits(r + 1, c))) << width << ", " << r << ", " << c;
      }
    }
  }
}

TEST_F(Bf16, GemmMatchesAPlainDoubleLoop) {
  const std::int64_t lanes = probes().panel_width;
  for (const std::int64_t width : kDotWidths) {
    const std::int64_t m_count = 11;
    const std::int64_t depth = (width + 1) / 2;
    const RowsOfDtype left(TILEWISE_BF16, m_count, width, width, 3);
    const RowsOfDtype right(TILEWISE_BF16, lanes, width, width, 4);
    Array<std::uint32_t> a(m_count * depth);
    Array<std::uint32_t> b(depth * lanes);
    Array<float> c = poisoned<float>(m_count * lanes);
    probes().stage_rows(left.rows(), a.data());
    probes().pack_panel(right.rows(), 1.0f, b.data());
    probes().gemm(a.data(), depth, m_count, b.data(), depth, c.data());
    for (std::int64_t m = 0; m < m_count; ++m) {
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        double sum = 0;
        double size = 0;
        for (std::int64_t k = 0; k < width; ++k) {
          sum += left.at(m, k) * right.at(lane, k);
          size += std::abs(left.at(m, k) * right.at(lane, k));
        }
        ASSERT_NEAR(static_cast<double>(c[m * lanes + lane]), sum,
                    static_cast<double>(width + 1) * 0x1p-23 * size)
            << width << ", " << m << ", " << lane;
      }
    }
  }
}

// dS of a sequence of one key is dP - delta, and must be zero.
TEST_F(Bf16, TheInnerProductOfDeltaHasTheBitsOfDP) {
  const std::int64_t lanes = probes().panel_width;
  for (const std::int64_t width : kDotWidths) {
    const std::int64_t depth = (width + 1) / 2;
    const RowsOfDtype dout(TILEWISE_BF16, 5, width, width, 5);
    const RowsOfDtype value(TILEWISE_BF16, 1, width, width, 6);
    Array<std::uint32_t> a(5 * depth);
    Array<std::uint32_t> b(depth * lanes);
    Array<float> c = poisoned<float>(5 * lanes);
    probes().stage_rows(dout.rows(), a.data());
    probes().pack_panel(value.rows(), 1.0f, b.data());
    probes().gemm(a.data(), depth, 5, b.data(), depth, c.data());
    for (std::int64_t m = 0; m < 5; ++m) {
      const float sum =
          probes().inner_product(static_cast<const std::uint16_t*>(dout.data()) + m * width,
                                 static_cast<const std::uint16_t*>(value.data()), width);
      ASSERT_TRUE(same_bits(sum, c[m * lanes])) << width << ", " << m;
    }
  }
}

}  // namespace
}  // namespace tilewise::cpu
