// Packing for AMX. A tile product multiplies a tile of A (16 rows x 32 columns of bf16) with a tile
// of B, whose words hold pairs of rows: two neighbours along the sum.
//
//   scores   A = K rows               B = Q^T: word (pair of columns of Q, query)
//   output   A = V^T rows             B = P^T: word (pair of keys, query)
//
// Sums run over whole depths of 32: elements after the end of a matrix are packed as zeros.
#pragma once

#include "cpu/amx/tile_product.h"
#include "cpu/simd/load_16bit.h"
#include "math/integer.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// Which term of a number is packed: a bf16 as it is, or one of the two bf16 whose sum an fp16 is.
// The high term is the nearest bf16. Of the 11 bits of an fp16 it holds 8, which leaves 3 for the
// low term; the least denormal of fp16, 2^-24, is far above the least bf16. The low term of a
// number that is not finite is NaN.
enum class Term { kWhole, kHigh, kLow };

// The input type for a number of terms.
template <int kTerms>
using AmxNumber = std::conditional_t<kTerms == 2, math::Float16, math::BFloat16>;

template <Term kTerm>
struct TermConstant {
  static constexpr Term value = kTerm;
};
// Calls f(TermConstant, index) for the terms of a number.
template <int kTerms, class Function>
TILEWISE_INLINE void for_each_term(Function f) {
  if constexpr (kTerms == 1) {
    f(TermConstant<Term::kWhole>{}, 0);
  } else {
    f(TermConstant<Term::kHigh>{}, 0);
    f(TermConstant<Term::kLow>{}, 1);
  }
}

TILEWISE_INLINE __m512i high_terms(__m512 first, __m512 second) {
  return __m512i(_mm512_cvtne2ps_pbh(second, first));
}
// The difference of the numbers and their high terms, in the order of lanes.
TILEWISE_INLINE __m512i low_terms(__m512 first, __m512 second) {
  const __m512i high = high_terms(first, second);
  const auto widened = [](__m256i halves) {
    return __m512(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  };
  return high_terms(_mm512_sub_ps(first, widened(_mm512_castsi512_si256(high))),
                    _mm512_sub_ps(second, widened(_mm512_extracti64x4_epi64(high, 1))));
}

// Loads a term of 32 numbers of a row, from column c on. Lanes after the end of the row are zeros.
template <Term kTerm = Term::kWhole>
TILEWISE_INLINE __m512i load_terms(const std::uint16_t* row, std::int64_t c, std::int64_t width) {
  const __m512i halves = load_16bit(row, c, width);
  if constexpr (kTerm == Term::kWhole) return halves;
  const __m512 first = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
  const __m512 second = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
  return kTerm == Term::kHigh ? high_terms(first, second) : low_terms(first, second);
}

// 32 rows of up to kGatherWidth columns are copied next to each other before they are transposed:
// rows that lie 2 KB apart share two sets of the L1, and a transposition touches each of their
// lines four times.
inline constexpr std::int64_t kGatherRows = 32;
inline constexpr std::int64_t kGatherWidth = 128;
struct Gathered {
  alignas(64) std::uint16_t rows[kGatherRows * kGatherWidth];  // (kGatherRows, kGatherWidth)
};

// Gathers the rows from `first` on and the columns from `c` on. Elements after the ends of the
// matrix become zeros, as do the rows that `zeroed` (if given) flags. `sign` is XORed to every
// word.
template <Term kTerm>
TILEWISE_INLINE void gather_rows(const RowBlock& rows, std::int64_t first, std::int64_t c,
                                 const std::uint8_t* zeroed, __m512i sign, Gathered& to) {
  const RowAddresses<std::uint16_t> address(rows);
  const std::int64_t width = math::min(math::round_up(rows.width - c, 32), kGatherWidth);
  for (std::int64_t r = 0; r < kGatherRows; ++r) {
    const bool there = first + r < rows.count && (zeroed == nullptr || zeroed[first + r] == 0);
    const std::uint16_t* const from = there ? address[first + r] : nullptr;
    for (std::int64_t i = 0; i < width; i += 32) {
      const __m512i words =
          there ? load_terms<kTerm>(from, c + i, rows.width) : _mm512_setzero_si512();
      _mm512_store_si512(to.rows + r * kGatherWidth + i, _mm512_xor_si512(words, sign));
    }
  }
}

// Loads four times 16 bytes into the 128-bit lanes of a register.
//
// step: distance between them, in elements
TILEWISE_INLINE __m512i load_lanes(const std::uint16_t* from, std::int64_t step) {
  const auto lane = [&](std::int64_t i) {
    return _mm_load_si128(reinterpret_cast<const __m128i*>(from + i * step));
  };
  __m512i all = _mm512_castsi128_si512(lane(0));
  all = _mm512_mask_broadcast_i32x4(all, 0x00F0, lane(1));
  all = _mm512_mask_broadcast_i32x4(all, 0x0F00, lane(2));
  return _mm512_mask_broadcast_i32x4(all, 0xF000, lane(3));
}

// Eight columns of 32 gathered rows become eight rows of a tile.
TILEWISE_INLINE void transpose_words(const std::uint16_t* from, std::uint16_t* to) {
  __m512i r[8];
  __m512i t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = load_lanes(from + i * kGatherWidth, 8 * kGatherWidth);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm512_unpacklo_epi16(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi16(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm512_unpacklo_epi32(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi32(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi32(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi32(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm512_storeu_si512(to + std::int64_t{2} * i * kTileDepth,
                        _mm512_unpacklo_epi64(r[i], r[i + 4]));
    _mm512_storeu_si512(to + (2 * i + 1) * kTileDepth, _mm512_unpackhi_epi64(r[i], r[i + 4]));
  }
}

// Four pairs of columns of 16 gathered rows become four rows of words.
//
// stride: in words
TILEWISE_INLINE void transpose_pairs(const std::uint16_t* from, std::uint32_t* to,
                                     std::int64_t stride) {
  __m512i r[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) r[i] = load_lanes(from + i * kGatherWidth, 4 * kGatherWidth);
  const __m512i low_a = _mm512_unpacklo_epi32(r[0], r[1]);
  const __m512i high_a = _mm512_unpackhi_epi32(r[0], r[1]);
  const __m512i low_b = _mm512_unpacklo_epi32(r[2], r[3]);
  const __m512i high_b = _mm512_unpackhi_epi32(r[2], r[3]);
  _mm512_storeu_si512(to, _mm512_unpacklo_epi64(low_a, low_b));
  _mm512_storeu_si512(to + stride, _mm512_unpackhi_epi64(low_a, low_b));
  _mm512_storeu_si512(to + 2 * stride, _mm512_unpacklo_epi64(high_a, high_b));
  _mm512_storeu_si512(to + 3 * stride, _mm512_unpackhi_epi64(high_a, high_b));
}

// Packs a right operand: panel[pair][lane] = columns 2 * pair and 2 * pair + 1 of a row, with
// flipped signs if `negative`. Lanes from rows.count on are 0, as are those that `zeroed` (if
// given) flags.
//
// panel: (round_up(width, 32) / 2, kWidth)
template <int kWidth, Term kTerm = Term::kWhole>
void pack_bf16_pairs(const RowBlock& rows, bool negative, const std::uint8_t* zeroed,
                     std::uint32_t* panel) {
  static_assert(kWidth == kGatherRows, "a panel is gathered at once");
  const __m512i sign = _mm512_set1_epi16(negative ? static_cast<short>(0x8000) : short(0));
  Gathered gathered;
  for (std::int64_t c0 = 0; c0 < rows.width; c0 += kGatherWidth) {
    gather_rows<kTerm>(rows, 0, c0, zeroed, sign, gathered);
    const std::int64_t width = math::min(math::round_up(rows.width - c0, 32), kGatherWidth);
    for (std::int64_t c = 0; c < width; c += 8) {
      std::uint32_t* const to = panel + (c0 + c) / 2 * kWidth;
      transpose_pairs(gathered.rows + c, to, kWidth);
      transpose_pairs(gathered.rows + 16 * kGatherWidth + c, to + 16, kWidth);
    }
  }
}

// Packs a left operand: tiles[row / 16][column / 32] of the matrix, with zeros after its end, up to
// a multiple of 32 rows.
//
// tiles: (round_up(count, 32) / 16, round_up(width, 32) / 32, 16, 32)
template <Term kTerm = Term::kWhole>
TILEWISE_INLINE void pack_row_tiles(const RowBlock& rows, std::uint16_t* tiles) {
  const RowAddresses<std::uint16_t> address(rows);
  const std::int64_t across = math::round_up(rows.width, kTileDepth) / kTileDepth;
  for (std::int64_t r = 0; r < math::round_up(rows.count, kTileDepth); ++r) {
    std::uint16_t* const to =
        tiles + r / kTileRows * across * kTileElements + r % kTileRows * kTileDepth;
    const bool there = r < rows.count;
    const std::uint16_t* const from = there ? address[r] : nullptr;
    if (there) prefetch_later_row(rows, address, r);
    for (std::int64_t t = 0; t < across; ++t) {
      const __m512i part =
          there ? load_terms<kTerm>(from, t * kTileDepth, rows.width) : _mm512_setzero_si512();
      _mm512_storeu_si512(to + t * kTileElements, part);
    }
  }
}

// Packs a left operand: tiles[column / 16][row / 32] of the transposed matrix, with zeros after its
// ends and in place of the rows that `zeroed` (if given) flags.
//
// tiles: (round_up(width, 16) / 16, across, 16, 32), of which round_up(count, 32) / 32 are written
template <Term kTerm = Term::kWhole>
void pack_column_tiles(const RowBlock& rows, std::int64_t across, const std::uint8_t* zeroed,
                       std::uint16_t* tiles) {
  Gathered gathered;
  for (std::int64_t r = 0; r < rows.count; r += kGatherRows) {
    for (std::int64_t c0 = 0; c0 < rows.width; c0 += kGatherWidth) {
      gather_rows<kTerm>(rows, r, c0, zeroed, _mm512_setzero_si512(), gathered);
      const std::int64_t width =
          math::min(math::round_up(rows.width - c0, kTileRows), kGatherWidth);
      for (std::int64_t c = 0; c < width; c += 8) {
        std::uint16_t* const tile =
            tiles + ((c0 + c) / kTileRows * across + r / kTileDepth) * kTileElements;
        transpose_words(gathered.rows + c, tile + c % kTileRows * kTileDepth);
      }
    }
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
