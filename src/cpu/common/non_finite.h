// Containment of NaN and infinity: a masked key or value never affects a result, even if it holds
// NaN.
//
// A NaN in a score makes its whole row NaN, so it may flow through the products. What can leak are
// rows of the operand that a product sums over (V in the forward pass; Q, dO and K in backward): a
// masked probability is 0, but 0 * NaN is NaN. In a tile that is seen whole they may flow, too. In
// other tiles rows that are not finite enter the product as zeros, and are then added one by one to
// the lanes that see them.
#pragma once

#include "cpu/common/gemm_masked.h"
#include "cpu/common/traffic.h"
#include "cpu/simd/packing_bf16.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Arrays for a tile of which some rows are not finite.
struct NonFiniteScratch {
  std::uint8_t* seen;          // (rows of the tile, kWidth), from record_seen()
  std::uint8_t* non_finite_a;  // (rows of the tile), for the columns of Q or V
  std::uint8_t* non_finite_b;  // (rows of the tile), for those of dO
};

// Returns true if no score of the first `lanes` lanes is masked. It must be called after
// apply_score_mod() and before the exponential.
template <class T, int kWidth>
bool sees_whole(std::int64_t t_count, std::int64_t lanes, const T* scores) {
  const Vec<T> masked(-math::Limits<T>::kInfinity);
  bool whole = true;
  for (int lane = 0; lane < kWidth; lane += Vec<T>::kLanes) {
    Vec<T> least(T(0));  // a NaN is not masked
    for (std::int64_t t = 0; t < t_count; ++t)
      least = minimum(Vec<T>::load(scores + t * kWidth + lane), least);
    const Mask<T> counts = Vec<T>::iota() < Vec<T>(static_cast<T>(math::max(lanes - lane, 0)));
    whole = whole && !any_lane((least == masked) & counts);
  }
  return whole;
}

// Sets seen[t][lane] = 1 where the score is not masked. Returns sees_whole(); if it is true, `seen`
// is not written.
template <class T, int kWidth>
bool record_seen(std::int64_t t_count, std::int64_t lanes, const T* scores, std::uint8_t* seen) {
  typedef std::uint8_t Bytes __attribute__((vector_size(Vec<T>::kLanes)));
  if (sees_whole<T, kWidth>(t_count, lanes, scores)) return true;
  const Vec<T> masked(-math::Limits<T>::kInfinity);
  for (int lane = 0; lane < kWidth; lane += Vec<T>::kLanes) {
    for (std::int64_t t = 0; t < t_count; ++t) {
      const std::int64_t at = t * kWidth + lane;
      const Mask<T> is_masked = Vec<T>::load(scores + at) == masked;
      const Bytes bytes = __builtin_convertvector(is_masked.v + 1, Bytes);
      __builtin_memcpy(seen + at, &bytes, sizeof(bytes));
    }
  }
  return false;
}

// The lanes of a register whose bytes are not 0.
template <class T>
TILEWISE_INLINE Mask<T> lanes_of_bytes(const std::uint8_t* bytes) {
  typedef std::uint8_t Bytes __attribute__((vector_size(Vec<T>::kLanes)));
  Bytes loaded;
  __builtin_memcpy(&loaded, bytes, sizeof(loaded));
  return {__builtin_convertvector(loaded, typename Registers<T>::Bits) != 0};
}

// Columns of rows that are summed over, in the two forms that a tile may need.
template <class E>
struct ContainedColumns {
  PackedColumns<E> whole;   // all rows as they are
  PackedColumns<E> zeroed;  // rows that are not finite are zeros; only if all_finite is false
  bool all_finite;
};

// Adds to out the rows that are zeros in columns.zeroed, for the lanes that see them: out[c][lane]
// += row[c] * probs[lane].
//
// probs: from as_operands(); seen: (t_count, kWidth)
template <class E, int kColumns, int kWidth>
void add_non_finite_rows(const ContainedColumns<E>& columns, std::int64_t skipped,
                         const ActiveRegisters<kColumns>& active, const E* probs,
                         const std::uint8_t* seen, SumOf<E>* out) {
  using T = SumOf<E>;
  for (std::int64_t c = 0; c < columns.whole.rows.width; c += kGemmRows) {
    const E* const block = columns.whole.data + c / kGemmRows * kPackedBlock<E>;
    for (int n = 0; n < kColumns; ++n) {
      const int lane = n * Vec<T>::kLanes;
      T* const to = out + c * kWidth + lane;
      Vec<T> sums[kGemmRows];
#pragma GCC unroll 8
      for (int m = 0; m < kGemmRows; ++m) sums[m] = Vec<T>::load(to + m * kWidth);
      for (std::int64_t t = active.begin[n]; t < active.end[n]; ++t) {
        if (columns.zeroed.non_finite[skipped + t] == 0) continue;
        const Vec<T> prob = operand_lanes<E, kWidth>(probs, t, lane);
        const Mask<T> sees = lanes_of_bytes<T>(seen + t * kWidth + lane);
#pragma GCC unroll 8
        for (int m = 0; m < kGemmRows; ++m) {
          const Vec<T> number(packed_number(block, skipped + t, m));
          sums[m] = select(sees, multiply_add(number, prob, sums[m]), sums[m]);
        }
      }
#pragma GCC unroll 8
      for (int m = 0; m < kGemmRows; ++m) sums[m].store(to + m * kWidth);
    }
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
