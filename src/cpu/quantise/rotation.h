// Incoherent processing: the product of a row and a random orthogonal matrix, which is a sign of
// every column and a normalised Hadamard transform of every block of columns (docs/semantics.md,
// "Quantisation"). Every addition is one of the definition, in its order within a pair, so that all
// instruction sets give the same bits.
#pragma once

#include "cpu/quantise/rounding.h"
#include "cpu/simd/conversion.h"
#include "math/incoherent.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Fills in what every column is multiplied by: its random sign over the root of its block's width.
inline void fill_factors(std::int64_t width, std::uint64_t seed, float* factors) {
  std::int64_t end = 0;
  float root = 1;
  math::Philox4 words = {};
  for (std::int64_t c = 0; c < width; ++c) {
    if (c % 128 == 0) words = math::column_signs(c / 128, seed);
    if (c == end) {
      const std::int64_t block = math::hadamard_block(width - c);
      root = math::reciprocal_root(block);
      end += block;
    }
    const bool negative = (words.word[c / 32 % 4] >> (c % 32) & 1u) != 0;
    factors[c] = negative ? -root : root;
  }
}

// Turns pairs of lanes of distance kStep, (a, b), into (a + b, a - b).
template <int kStep, int... kLane>
TILEWISE_INLINE Vec<float> lane_butterflies(Vec<float> x, std::integer_sequence<int, kLane...>) {
  const LaneBits signs = {((kLane & kStep) != 0 ? INT32_MIN : 0)...};
  const Vec<float> other(__builtin_shufflevector(x.v, x.v, (kLane ^ kStep)...));
  return other + Vec<float>(Vec<float>::Native(LaneBits(x.v) ^ signs));
}
template <int kStep = 1>
TILEWISE_INLINE Vec<float> transform_lanes(Vec<float> x) {
  if constexpr (kStep < Vec<float>::kLanes) {
    constexpr auto kAll = std::make_integer_sequence<int, Vec<float>::kLanes>{};
    return transform_lanes<2 * kStep>(lane_butterflies<kStep>(x, kAll));
  } else {
    return x;
  }
}

// Transforms kCount registers, which hold a block or kCount * kLanes neighbours of a larger one.
template <int kCount>
TILEWISE_INLINE void transform_registers(float* x) {
  constexpr std::int64_t kLanes = Vec<float>::kLanes;
  Vec<float> part[kCount];
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) part[i] = transform_lanes(Vec<float>::load(x + i * kLanes));
#pragma GCC unroll 8
  for (int step = 1; step < kCount; step *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      if ((i & step) != 0) continue;
      const Vec<float> sum = part[i] + part[i + step];
      part[i + step] = part[i] - part[i + step];
      part[i] = sum;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) part[i].store(x + i * kLanes);
}

// A block that is smaller than a register.
TILEWISE_INLINE void transform_few(float* x, std::int64_t n) {
  for (std::int64_t step = 1; step < n; step *= 2) {
    for (std::int64_t i = 0; i < n; ++i) {
      if ((i & step) != 0) continue;
      const float sum = x[i] + x[i + step];
      x[i + step] = x[i] - x[i + step];
      x[i] = sum;
    }
  }
}

// The Hadamard transform of a block, without its normalisation, in place. n: a power of two
TILEWISE_INLINE void transform_block(float* x, std::int64_t n) {
  constexpr std::int64_t kLanes = Vec<float>::kLanes;
  if (n < kLanes) return transform_few(x, n);
  if (n == kLanes) return transform_registers<1>(x);
  if (n == 2 * kLanes) return transform_registers<2>(x);
  if (n == 4 * kLanes) return transform_registers<4>(x);
  for (std::int64_t i = 0; i < n; i += 8 * kLanes) transform_registers<8>(x + i);
  for (std::int64_t step = 8 * kLanes; step < n; step *= 2) {
    for (std::int64_t i = 0; i < n; i += kLanes) {
      if ((i & step) != 0) continue;
      const Vec<float> a = Vec<float>::load(x + i);
      const Vec<float> b = Vec<float>::load(x + i + step);
      (a + b).store(x + i);
      (a - b).store(x + i + step);
    }
  }
}

// Writes the product of a row and the matrix, whose factors fill_factors() made.
template <class S>
TILEWISE_INLINE void rotate_row(const S* from, std::int64_t width, const float* factors,
                                float* to) {
  constexpr std::int64_t kLanes = Vec<float>::kLanes;
  std::int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes)
    (load_converted<float>(from + c) * Vec<float>::load(factors + c)).store(to + c);
  for (; c < width; ++c) to[c] = math::load<float>(from[c]) * factors[c];
  for (std::int64_t begin = 0; begin < width;) {
    const std::int64_t block = math::hadamard_block(width - begin);
    transform_block(to + begin, block);
    begin += block;
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
