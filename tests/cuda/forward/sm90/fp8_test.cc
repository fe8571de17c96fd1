// The table of cuda_sm90 for fp8, and its arithmetic on bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "cuda/forward/sm90/fp8/fp8_bytes.h"
#include "cuda/forward/sm90/select.h"
#include "math/float8.h"

namespace tilewise::cuda::sm90 {
namespace {

TEST(Sm90Fp8, TheFirstRowThatFitsIsUsed) {
  problem::Problem p;
  p.dtype = TILEWISE_E4M3;
  for (int dim = 16; dim <= 128; dim += 16) {
    for (int value_dim = 16; value_dim <= 128; value_dim += 16) {
      for (const std::int64_t block_stride : {0, 1}) {
        p.head_dim = dim;
        p.value_dim = value_dim;
        p.v_descale.row = block_stride;
        const Fp8KernelRow& row = kFp8Kernels[select_fp8_kernel(p)];
        EXPECT_EQ(row.head_dim, dim <= 64 && value_dim <= 64 ? 64 : 128);
        EXPECT_GE(row.value_dim, value_dim);
        EXPECT_EQ(row.score_mod, block_stride != 0);
      }
    }
  }
}

TEST(Sm90Fp8, RegistersAndStagesAreThoseOfTheHardware) {
  for (const Fp8KernelRow& row : kFp8Kernels) {
    for (const bool e5m2 : {false, true}) {
      const KernelConfig config = row.config(e5m2);
      EXPECT_EQ(config.e5m2, e5m2);
      EXPECT_EQ(config.threads(), 512);
      EXPECT_LE(128 * (config.producer_registers() + config.transposer_registers() +
                       2 * config.consumer_registers()),
                65536);
      EXPECT_LE(config.k_stages, kMaxStages);
      EXPECT_LE(config.v_stages, kMaxStages);
      EXPECT_LE(config.loaded_v_stages, kMaxStages);
      // Panels begin at multiples of 1024 bytes.
      for (const int bytes :
           {config.q_bytes() / 2, config.k_bytes(), config.v_bytes(), config.loaded_v_bytes()})
        EXPECT_EQ(bytes % 1024, 0);
      EXPECT_FALSE(config.has_epilogue_warps());
      EXPECT_FALSE(config.has_careful_kernel());
    }
  }
}

template <bool kE5M2>
float number(std::uint8_t code) {
  if constexpr (kE5M2) return math::to_float(math::Float8E5M2{code});
  return math::to_float(math::Float8E4M3{code});
}

// Every code in every byte, beside others.
template <bool kE5M2>
void expect_bytes() {
  const float one = number<kE5M2>(kE5M2 ? 0x3c : 0x38);
  EXPECT_EQ(one, 1.0f);
  for (std::uint32_t code = 0; code < 256; ++code) {
    for (const std::uint32_t other : {0x00u, 0x7fu, 0xffu, 0x7bu}) {
      for (unsigned byte = 0; byte < 4; ++byte) {
        const std::uint32_t others = other * 0x01010101u & ~(0xFFu << 8 * byte);
        const std::uint32_t numbers = others | code << 8 * byte;
        const auto of = [&](std::uint32_t word) {
          return static_cast<std::uint8_t>(word >> 8 * byte);
        };
        const float x = number<kE5M2>(of(numbers));
        const bool finite = std::isfinite(x);
        EXPECT_EQ(of(non_finite_fp8<kE5M2>(numbers)), finite ? 0 : 1) << code;
        EXPECT_EQ(of(finite_fp8<kE5M2>(numbers)), finite ? code : 0) << code;
        const bool positive = std::isnan(x) || x == INFINITY;
        EXPECT_EQ(number<kE5M2>(of(markers_of_fp8<kE5M2, false>(numbers))), positive ? 1.0f : 0.0f)
            << code;
        if (!kE5M2) continue;
        const bool negative = std::isnan(x) || x == -INFINITY;
        EXPECT_EQ(number<kE5M2>(of(markers_of_fp8<kE5M2, true>(numbers))), negative ? 1.0f : 0.0f)
            << code;
      }
    }
  }
}

TEST(Sm90Fp8, NonFiniteNumbersAreFoundInEachByte) {
  expect_bytes<false>();
  expect_bytes<true>();
}

}  // namespace
}  // namespace tilewise::cuda::sm90
