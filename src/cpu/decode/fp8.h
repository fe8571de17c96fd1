// Decoding with a cache of fp8. A block of K or V is converted to rows of floats in the L1, for any
// number of queries; from there on it is a block of fp32 in a form that short rows have anyway.
#pragma once

#include "cpu/decode/step.h"
#include "cpu/simd/dequantise.h"

namespace tilewise::cpu::TILEWISE_TARGET {

template <class S>
inline constexpr bool kIsFp8 = std::is_same_v<S, Float8Code>;

// rows: of K or V, at most kDecodeKeys
inline Rows<float> stage_fp8_block(const Problem& problem, const RowBlock& rows, float* staged) {
  const std::int64_t size = padded<float>(rows.width).width;
  dequantise_rows(problem, rows, rows.head, size, staged);
  return {staged, size};
}

// Replaces rows that are not finite by zeros.
inline void clear_non_finite_rows(const Rows<float>& rows, const RowBlock& block) {
  for (std::int64_t j = 0; j < block.count; ++j) {
    float* const row = const_cast<float*>(rows.data) + j * rows.stride;
    if (row_is_finite<float>(row, block.width)) continue;
    for (std::int64_t c = 0; c < block.width; ++c) row[c] = 0;
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
