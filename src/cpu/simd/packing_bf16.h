// Packing of bf16 operands for vdpbf16ps: the functions of packing.h and packed_columns.h for words
// of two bf16 that are neighbours along the sum. Elements after the end of a matrix are zeros.
//
//   scores   a = K rows, two columns of a word        b = Q^T, the same two columns
//   output   a = V columns, two keys of a word        b = P^T, the same two keys
#pragma once

#include "cpu/simd/load_16bit.h"
#include "math/integer.h"

#if TILEWISE_HAS_AVX512_BF16

#include <concepts>

namespace tilewise::cpu::TILEWISE_TARGET {

template <class E>
concept IsBf16Pair = std::same_as<E, Bf16Pair>;

// Two rows of 32 columns, interleaved: every word holds one column of both.
struct InterleavedRows {
  __m512i low;   // columns 0 to 15
  __m512i high;  // columns 16 to 31
};
TILEWISE_INLINE InterleavedRows interleave(__m512i first, __m512i second) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i low =
      _mm512_or_si512(lanes, _mm512_slli_epi32(_mm512_add_epi32(lanes, _mm512_set1_epi32(32)), 16));
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  return {_mm512_permutex2var_epi16(first, low, second),
          _mm512_permutex2var_epi16(first, high, second)};
}

// The words of a row are its own pairs of columns, so rows are copied one after the other.
//
// stage: (count, operand_count(width))
template <IsBf16Pair E>
Rows<E> stage_rows(const RowBlock& rows, E* stage) {
  const std::int64_t stride = operand_count<E>(rows.width);
  const RowAddresses<std::uint16_t> address(rows);
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const std::uint16_t* const from = address[r];
    E* const to = stage + r * stride;
    for (std::int64_t c = 0; c < stride; c += 16) {
      const std::int64_t left = stride - c;
      const __mmask16 mask = static_cast<__mmask16>(left >= 16 ? 0xFFFF : (1 << left) - 1);
      _mm512_mask_storeu_epi32(to + c, mask, load_16bit(from, 2 * c, rows.width));
    }
  }
  return {stage, stride};
}

// panel[c / 2][lane] = columns c and c + 1 of a row, with flipped signs if factor is -1. Lanes from
// rows.count on are zeros.
//
// panel: (operand_count(width), kWidth)
template <IsBf16Pair E, int kWidth>
void pack_panel(const RowBlock& rows, float factor, E* panel) {
  const __m512i sign = _mm512_set1_epi16(factor < 0 ? static_cast<short>(0x8000) : short(0));
  const std::int64_t words = operand_count<E>(rows.width);
  for (std::int64_t lane0 = 0; lane0 < kWidth; lane0 += 16) {
    for (std::int64_t c = 0; c < words; c += 16) {
      Vec<E> square[16];
      for (int i = 0; i < 16; ++i) {
        const __m512i halves =
            lane0 + i < rows.count
                ? load_16bit(rows_16bit(rows) + (lane0 + i) * rows.view->row, 2 * c, rows.width)
                : _mm512_setzero_si512();
        square[i] = Vec<E>(typename Vec<E>::Native(_mm512_xor_si512(halves, sign)));
      }
      transpose(square);
      for (std::int64_t i = 0; i < math::min(16, words - c); ++i)
        square[i].store(panel + (c + i) * kWidth + lane0);
    }
  }
}

TILEWISE_INLINE __m512i absolute_16bit(__m512i halves) {
  return _mm512_and_si512(halves, _mm512_set1_epi16(0x7FFF));
}
// The largest of the halves, as bf16 without a sign.
TILEWISE_INLINE float largest_bf16(__m512i halves) {
  std::uint16_t bits[32];
  __builtin_memcpy(bits, &halves, sizeof(bits));
  std::uint16_t largest = 0;
  for (const std::uint16_t half : bits) largest = half > largest ? half : largest;
  return math::to_float(math::BFloat16{largest});
}

// Packs rows as the left operand of the product that sums over them; a word holds two rows. Pairs
// have no unit.
template <IsBf16Pair E>
PackedColumns<E> pack_columns(const RowBlock& rows, float, E* data) {
  const RowAddresses<std::uint16_t> address(rows);
  const auto row = [&](const std::uint16_t* from, std::int64_t c) {
    return from == nullptr ? _mm512_setzero_si512() : load_16bit(from, c, rows.width);
  };
  __m512i largest = _mm512_setzero_si512();
  static_assert(kGemmRows == 8, "a block of columns is half a register");
  const std::int64_t width = math::round_up(rows.width, kGemmRows);
  for (std::int64_t r = 0; r < rows.count; r += 2) {
    E* const to = data + r / 2 * kGemmRows;
    const std::uint16_t* const first = address[r];
    const std::uint16_t* const second = r + 1 < rows.count ? address[r + 1] : nullptr;
    for (std::int64_t c = 0; c < width; c += 32) {
      const __m512i even = row(first, c);
      const __m512i odd = row(second, c);
      largest =
          _mm512_max_epu16(largest, _mm512_max_epu16(absolute_16bit(even), absolute_16bit(odd)));
      const InterleavedRows pairs = interleave(even, odd);
      const __m256i blocks[4] = {
          _mm512_castsi512_si256(pairs.low), _mm512_extracti64x4_epi64(pairs.low, 1),
          _mm512_castsi512_si256(pairs.high), _mm512_extracti64x4_epi64(pairs.high, 1)};
      for (std::int64_t i = 0; i < math::min(4, (width - c) / kGemmRows); ++i) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + (c / kGemmRows + i) * kPackedBlock<E>),
                            blocks[i]);
      }
    }
  }
  return {rows, data, largest_bf16(largest)};
}

// Makes the result of a product the operand of the next one: rows 2t and 2t + 1 of the tile become
// row t of words, in place, in the first kColumns registers. It rounds to nearest even; denormals
// become zeros.
template <IsBf16Pair E, int kColumns, int kWidth>
TILEWISE_INLINE const E* as_operands(std::int64_t t_count, float* tile) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i order =
      _mm512_or_si512(lanes, _mm512_slli_epi32(_mm512_add_epi32(lanes, _mm512_set1_epi32(16)), 16));
  for (std::int64_t t = 0; t < t_count; t += 2) {
    for (int lane = 0; lane < kColumns * 16; lane += 16) {
      const float* const from = tile + t * kWidth + lane;
      const __m512 even = __m512(Vec<float>::load(from).v);
      const __m512 odd =
          t + 1 < t_count ? __m512(Vec<float>::load(from + kWidth).v) : _mm512_setzero_ps();
      const __m512i halves = __m512i(_mm512_cvtne2ps_pbh(odd, even));
      _mm512_storeu_si512(tile + t / 2 * kWidth + lane, _mm512_permutexvar_epi16(order, halves));
    }
  }
  return reinterpret_cast<const E*>(tile);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AVX512_BF16
