// Operands of products in bf16 pairs. The matrix unit multiplies tiles of A (16 rows x 32 columns)
// with pairs of rows of B: a word of B holds two neighbours along the sum.
//
//   scores   A = K rows               B = Q^T: word (pair of columns of Q, query)
//   output   A = V^T rows             B = P^T: word (pair of keys, query)
//
// Sums run over whole depths of 32: what lies beyond a matrix's end is staged as zero.
#pragma once

#include "cpu/operand.h"
#include "cpu/tile_unit.h"

#if TILEWISE_HAS_TILES

namespace tilewise::cpu::TILEWISE_TARGET {

TILEWISE_INLINE std::int64_t round_up(std::int64_t n, std::int64_t to) {
  return (n + to - 1) / to * to;
}

TILEWISE_INLINE const std::uint16_t* bfloat_rows(const RowBlock& rows) {
  return static_cast<const std::uint16_t*>(rows.view->data) +
         rows.view->offset(rows.batch, rows.head, rows.first);
}

// 32 bf16 of a row from column c on, zeros beyond its end.
TILEWISE_INLINE __m512i load_bfloats(const std::uint16_t* row, std::int64_t c, std::int64_t width) {
  const std::int64_t left = width - c;
  if (left >= 32) return _mm512_loadu_si512(row + c);
  return _mm512_maskz_loadu_epi16(left <= 0 ? 0 : (__mmask32(1) << left) - 1, row + c);
}

// panel[pair][lane] = columns 2 * pair and 2 * pair + 1 of a row, their signs flipped if asked;
// lanes from rows.count on are 0.  panel is (round_up(width, 32) / 2, kWidth)
template <int kWidth>
void pack_pairs(const RowBlock& rows, bool negative, std::uint32_t* panel) {
  const std::uint16_t* const base = bfloat_rows(rows);
  const __m512i sign = _mm512_set1_epi16(negative ? static_cast<short>(0x8000) : short(0));
  for (std::int64_t lane0 = 0; lane0 < kWidth; lane0 += 16) {
    for (std::int64_t c = 0; c < rows.width; c += 32) {
      Vec<float> square[16];
      for (std::int64_t i = 0; i < 16; ++i) {
        const __m512i words = lane0 + i < rows.count
                                  ? load_bfloats(base + (lane0 + i) * rows.view->row, c, rows.width)
                                  : _mm512_setzero_si512();
        square[i] = Vec<float>(Vec<float>::Native(_mm512_xor_si512(words, sign)));
      }
      transpose(square);
      for (int i = 0; i < 16; ++i) {
        __builtin_memcpy(panel + (c / 2 + i) * kWidth + lane0, &square[i].v, sizeof(square[i].v));
      }
    }
  }
}

// tiles[row / 16][column / 32] of a matrix for the left operand, zeros beyond its end: rows up to
// the next multiple of 32.  tiles is (round_up(count, 32) / 16, round_up(width, 32) / 32, 16, 32)
TILEWISE_INLINE void pack_row_tiles(const RowBlock& rows, std::uint16_t* tiles) {
  const std::uint16_t* const base = bfloat_rows(rows);
  const std::int64_t across = round_up(rows.width, kTileDepth) / kTileDepth;
  for (std::int64_t r = 0; r < round_up(rows.count, kTileDepth); ++r) {
    std::uint16_t* const to =
        tiles + r / kTileRows * across * kTileElements + r % kTileRows * kTileDepth;
    for (std::int64_t t = 0; t < across; ++t) {
      const __m512i part = r < rows.count
                               ? load_bfloats(base + r * rows.view->row, t * kTileDepth, rows.width)
                               : _mm512_setzero_si512();
      _mm512_storeu_si512(to + t * kTileElements, part);
    }
  }
}

// tiles[column / 16][row / 32] of the transposed matrix, zeros beyond its ends, and in place of the
// rows that `left_out` (if given) marks.  tiles is (round_up(width, 16) / 16, `across`, 16, 32), of
// which round_up(count, 32) / 32 are written
inline void pack_column_tiles(const RowBlock& rows, std::int64_t across,
                              const std::uint8_t* left_out, std::uint16_t* tiles) {
  const std::uint16_t* const base = bfloat_rows(rows);
  const auto half_row = [&](std::int64_t r, std::int64_t c) {  // 16 columns, one in each word
    if (r >= rows.count || (left_out != nullptr && left_out[r] != 0)) return _mm512_setzero_si512();
    const std::int64_t left = rows.width - c;
    const __mmask16 mask =
        left >= 16 ? __mmask16(0xFFFF) : static_cast<__mmask16>((1u << left) - 1);
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, base + r * rows.view->row + c));
  };
  for (std::int64_t r = 0; r < rows.count; r += 32) {
    for (std::int64_t c = 0; c < rows.width; c += 16) {
      std::uint16_t* const to = tiles + (c / kTileRows * across + r / kTileDepth) * kTileElements;
      Vec<float> square[16];  // word: rows r + 2i and r + 2i + 1 of a column
      for (std::int64_t i = 0; i < 16; ++i) {
        const __m512i odd = _mm512_slli_epi32(half_row(r + 2 * i + 1, c), 16);
        square[i] = Vec<float>(Vec<float>::Native(_mm512_or_si512(half_row(r + 2 * i, c), odd)));
      }
      transpose(square);
      for (int i = 0; i < 16; ++i)
        __builtin_memcpy(to + i * kTileDepth, &square[i].v, sizeof(square[i].v));
    }
  }
}

// The words (low: even, high: odd), both rounded to nearest even.
class PairRounder {
 public:
  TILEWISE_INLINE PairRounder() {
    const __m512i low = _mm512_cvtepu16_epi32(
        _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    order_ =
        _mm512_or_si512(low, _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(16)), 16));
  }
  TILEWISE_INLINE void store(Vec<float> even, Vec<float> odd, std::uint32_t* to) const {
    const __m512bh both = _mm512_cvtne2ps_pbh(__m512(odd.v), __m512(even.v));
    __m512i words;
    __builtin_memcpy(&words, &both, sizeof(words));
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order_, words));
  }

 private:
  __m512i order_;
};

// Left operand: tiles[row / 16][column / 32], `across` tiles to a row of them.
struct TileRowsView {
  const std::uint16_t* tiles;
  std::int64_t across;
};

// c (rows, kWidth) = or += a (rows, depth) * b (depth / 2 pairs, kWidth).  rows: a multiple of 16,
// depth: of 32
template <int kWidth, bool kAdd>
void pair_product(TileRowsView a, std::int64_t rows, const std::uint32_t* b, std::int64_t depth,
                  float* c) {
  constexpr std::int64_t kStride = std::int64_t{kWidth} * 4;
  static_assert(kWidth % 32 == 0, "blocks are 32 lanes wide");
  const auto operands = [&](std::int64_t m, int lane, std::int64_t t) {
    const std::uint16_t* const top =
        a.tiles + (m / kTileRows * a.across + t / kTileDepth) * kTileElements;
    return TileOperands{top, top + a.across * kTileElements, b + t / 2 * kWidth + lane, kStride};
  };
  float* pending = nullptr;
  tile_fence();
  std::int64_t m = 0;
  for (; m + 32 <= rows; m += 32) {
    for (int lane = 0; lane < kWidth; lane += 32) {
      float* const to = c + m * kWidth + lane;
      begin_block<kAdd>(operands(m, lane, 0), to, pending, kStride);
      for (std::int64_t t = kTileDepth; t < depth; t += kTileDepth) add_step(operands(m, lane, t));
      pending = to;
    }
  }
  if (pending != nullptr) store_block(pending, kStride);
  for (int lane = 0; m < rows && lane < kWidth; lane += 32) {
    float* const to = c + m * kWidth + lane;
    if (kAdd) {
      load_flat_block(to, kStride);
    } else {
      _tile_zero(0);
      _tile_zero(1);
    }
    for (std::int64_t t = 0; t < depth; t += kTileDepth) add_flat_step(operands(m, lane, t));
    store_flat_block(to, kStride);
  }
  tile_fence();
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_TILES
