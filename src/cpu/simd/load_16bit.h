// Loads from rows of bf16 or fp16 in their storage format, without conversion.
#pragma once

#include "cpu/simd/packed_columns.h"

#if TILEWISE_HAS_AVX512_BF16

namespace tilewise::cpu::TILEWISE_TARGET {

TILEWISE_INLINE const std::uint16_t* rows_16bit(const RowBlock& rows) {
  return static_cast<const std::uint16_t*>(rows.view->data) +
         rows.view->offset(rows.batch, rows.head, rows.first);
}

// Loads 32 numbers of a row, from column c on. Lanes after the end of the row are zeros.
TILEWISE_INLINE __m512i load_16bit(const std::uint16_t* row, std::int64_t c, std::int64_t width) {
  const std::int64_t left = width - c;
  if (left >= 32) return _mm512_loadu_si512(row + c);
  return _mm512_maskz_loadu_epi16(left <= 0 ? 0 : (__mmask32(1) << left) - 1, row + c);
}

// Returns true if all numbers of a row are finite. kExponent is the mask of the exponent's bits:
// that of bf16, or of fp16.
template <int kExponent = 0x7F80>
TILEWISE_INLINE bool is_finite_16bit(const std::uint16_t* row, std::int64_t width) {
  const __m512i exponent = _mm512_set1_epi16(kExponent);
  __mmask32 non_finite = 0;
  for (std::int64_t c = 0; c < width; c += 32) {
    const __m512i halves = load_16bit(row, c, width);
    non_finite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(halves, exponent), exponent);
  }
  return non_finite == 0;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AVX512_BF16
