// Containment of NaN and infinity: a masked key or value never affects a result, even if it holds
// NaN.
//
// A NaN in a score makes its whole row NaN, so it may flow through the products. What can leak are
// rows of the operand that a product sums over (V in the forward pass; Q, dO and K in backward): a
// masked probability is 0, but 0 * NaN is NaN. In a tile that is seen whole they may flow, too. In
// other tiles the product selects 0 in place of their numbers, in the lanes that do not see them.
#pragma once

#include "cpu/common/gemm_masked.h"
#include "cpu/common/traffic.h"
#include "cpu/simd/packing_bf16.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Whether the lanes of a tile see all of its rows; it is known only if some rows are not finite.
template <class T>
struct TileSight {
  const typename BitsOf<T>::Word* seen;  // (t_count, kWidth), from record_seen(), if not seen_whole
  bool seen_whole;
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

// Sets all bits of seen[t][lane] where the score is not masked, and none elsewhere. Returns
// sees_whole(); if it is true, `seen` is not written.
template <class T, int kWidth>
bool record_seen(std::int64_t t_count, std::int64_t lanes, const T* scores,
                 typename BitsOf<T>::Word* seen) {
  if (sees_whole<T, kWidth>(t_count, lanes, scores)) return true;
  const Vec<T> masked(-math::Limits<T>::kInfinity);
  for (std::int64_t at = 0; at < t_count * kWidth; at += Vec<T>::kLanes) {
    const typename Registers<T>::Bits sees = ~(Vec<T>::load(scores + at) == masked).v;
    __builtin_memcpy(seen + at, &sees, sizeof(sees));
  }
  return false;
}

// The bits of the numbers of operand t that the lanes of a register see.
//
// seen: (t_count, kWidth), at the first lane of the register
template <class E, int kWidth>
TILEWISE_INLINE typename Registers<E>::Native seen_bits(const typename BitsOf<SumOf<E>>::Word* seen,
                                                        std::int64_t t, std::int64_t t_count) {
  typename Registers<E>::Native bits;
  if constexpr (Operand<E>::kNumbers == 1) {
    (void)t_count;
    __builtin_memcpy(&bits, seen + t * kWidth, sizeof(bits));
  } else {
    typename Registers<E>::Native odd = {};
    __builtin_memcpy(&bits, seen + 2 * t * kWidth, sizeof(bits));
    if (2 * t + 1 < t_count) __builtin_memcpy(&odd, seen + (2 * t + 1) * kWidth, sizeof(odd));
    bits = (bits & 0xFFFFu) | (odd & 0xFFFF0000u);
  }
  return bits;
}

// The operand x in the lanes that see it, and 0 in the others. A pair may be seen in part.
template <class E>
TILEWISE_INLINE Vec<E> where_seen(Vec<E> x, typename Registers<E>::Native seen) {
  if constexpr (Operand<E>::kNumbers == 1) {
    using Bits = typename Registers<E>::Bits;
    return Vec<E>(typename Vec<E>::Native(Bits(x.v) & Bits(seen)));
  } else {
    return Vec<E>(x.v & seen);
  }
}

// Registers of gemm_packed_seen() that share a row of the left operand: with 16 registers, 4 x 2
// sums, two registers of probs and two of `seen`, a broadcast and a product take 14.
inline constexpr int kSeenColumns = 2;

// kColumns registers of gemm_packed(), from `first` on, in which an operand is 0 where a lane does
// not see it. A lane has the bits that gemm_packed() gives it where what it does not see is finite.
template <class E, int kColumns, int kWidth>
void gemm_packed_seen(const E* a, std::int64_t m_count, const E* b, std::int64_t t_count,
                      math::KeyRange active, const typename BitsOf<SumOf<E>>::Word* seen,
                      SumOf<E>* c, const Vec<SumOf<E>>* factor) {
  using T = SumOf<E>;
  constexpr int kLanes = Vec<E>::kLanes;
  for (std::int64_t m0 = 0; m0 < m_count; m0 += kGemmRows) {
    const E* const block = a + m0 / kGemmRows * kPackedBlock<E>;
    Vec<T> sums[kGemmRows][kColumns];
    clear_sums(sums);
    for (std::int64_t t = active.begin; t < active.end; ++t) {
      Vec<E> row[kColumns];
      typename Registers<E>::Native sees[kColumns];
#pragma GCC unroll 2
      for (int n = 0; n < kColumns; ++n) {
        row[n] = Vec<E>::load(b + t * kWidth + n * kLanes);
        sees[n] = seen_bits<E, kWidth>(seen + n * kLanes, t, t_count);
      }
#pragma GCC unroll 8
      for (int m = 0; m < kGemmRows; ++m) {
        const Vec<E> number(block[t * kGemmRows + m]);
#pragma GCC unroll 2
        for (int n = 0; n < kColumns; ++n)
          sums[m][n] = multiply_add(where_seen(number, sees[n]), row[n], sums[m][n]);
      }
    }
    store_sums<E>({b, kWidth, c + m0 * kWidth, kWidth}, factor, sums);
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
