// GEMM: the one matrix product of src/cpu, blocked for registers. It computes c[m][lane] = c *
// factor + sum over t of a(m, t) * b[t][lane]. The sum is completed before it is added to c,
// because short sums lose less.
//
// `b` is a panel: `depth` rows of kColumns registers. `a` is read as scalars, either in place,
// along the rows of a row-major matrix (for scores, m is a row and t a column), or packed (for
// outputs, m is a column and t a row; see packed_columns.h). Lanes never mix, so the result of a
// lane does not depend on the contents of the others. The sum runs in the order of t, whatever the
// blocking.
#pragma once

#include "cpu/simd/prefetch.h"
#include "cpu/simd/vector.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Rows of a register block. With 32 registers, 8 x 3 sums + 3 registers of b + 1 broadcast take 28,
// and 24 independent sums hide 4 cycles of latency on 2 ports three times over. With 16 registers,
// 4 x 3 sums + 3 + 1 take all 16, and there are 12 sums for 8 operations in flight. Without FMA the
// product needs a register of its own, so the block is 4 x 2.
inline constexpr int kGemmRows = kRegisters == 32 ? 8 : 4;
#if defined(__FMA__) || defined(__aarch64__)
inline constexpr int kWideColumns = 3;
#else
inline constexpr int kWideColumns = 2;
#endif

// Packed columns are stored in blocks of kGemmRows columns, next to each other for every row:
// element (m, t) of block n is at n * kPackedBlock<E> + t * kGemmRows + m. A row-major tile that is
// read down its columns would give one element of each cache line, and miss the L1 at every step.
inline constexpr std::int64_t kMostPackedRows = 128;
// A block has room for two rows more than are used: blocks of exactly 4 KB would all begin in the
// same set of the L1.
template <class E>
inline constexpr std::int64_t kPackedBlock =
    (kMostPackedRows / Operand<E>::kNumbers + 2) * kGemmRows;

template <class E>
struct Rows {  // a row-major matrix; columns are contiguous
  using Number = E;
  const E* data;
  std::int64_t stride;

  TILEWISE_INLINE const E* operator[](std::int64_t r) const { return data + r * stride; }
  TILEWISE_INLINE Rows from_column(std::int64_t c) const { return {data + c, stride}; }
};

// Addresses of the right operand and of the result: rows of kColumns registers, a stride apart.
template <class E>
struct Panels {
  const E* b;
  std::int64_t b_stride;
  SumOf<E>* c;
  std::int64_t c_stride;
};

// How `a` is stored. With kRowsAccumulate the sums start from c.
enum class LeftOperand { kRows, kPacked, kRowsAccumulate };

// Adds the terms t in [begin, end) to the sums, in the registers [kFrom, kTo).
template <class E, int kM, int kColumns, LeftOperand kLeft, int kFrom = 0, int kTo = kColumns>
TILEWISE_INLINE void add_products(Rows<E> a, Panels<E> panels, std::int64_t begin, std::int64_t end,
                                  Vec<SumOf<E>> (&sums)[kM][kColumns]) {
#pragma GCC unroll 2
  for (std::int64_t t = begin; t < end; ++t) {
    Vec<E> row[kColumns];
#pragma GCC unroll 4
    for (int n = kFrom; n < kTo; ++n)
      row[n] = Vec<E>::load(panels.b + t * panels.b_stride + n * Vec<E>::kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
      const Vec<E> scalar(kLeft == LeftOperand::kPacked ? a.data[t * kM + m]
                                                        : a.data[m * a.stride + t]);
#pragma GCC unroll 4
      for (int n = kFrom; n < kTo; ++n) sums[m][n] = multiply_add(scalar, row[n], sums[m][n]);
    }
  }
}

template <class T, int kM, int kColumns>
TILEWISE_INLINE void clear_sums(Vec<T> (&sums)[kM][kColumns]) {
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kColumns; ++n) sums[m][n] = Vec<T>(T(0));
  }
}

template <class E, int kM, int kColumns>
TILEWISE_INLINE void store_sums(Panels<E> panels, const Vec<SumOf<E>>* factor,
                                Vec<SumOf<E>> (&sums)[kM][kColumns]) {
  using T = SumOf<E>;
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kColumns; ++n) {
      T* const to = panels.c + m * panels.c_stride + n * Vec<T>::kLanes;
      if (factor != nullptr) sums[m][n] = multiply_add(Vec<T>::load(to), factor[n], sums[m][n]);
      sums[m][n].store(to);
    }
  }
}

template <class E, int kM, int kColumns, LeftOperand kLeft>
TILEWISE_INLINE void gemm_block(Rows<E> a, Panels<E> panels, std::int64_t depth,
                                const Vec<SumOf<E>>* factor) {
  using T = SumOf<E>;
  Vec<T> sums[kM][kColumns];
  clear_sums(sums);
  if constexpr (kLeft == LeftOperand::kRowsAccumulate) {
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 4
      for (int n = 0; n < kColumns; ++n)
        sums[m][n] = Vec<T>::load(panels.c + m * panels.c_stride + n * Vec<T>::kLanes);
    }
  }
  add_products<E, kM, kColumns, kLeft>(a, panels, 0, depth, sums);
  store_sums(panels, factor, sums);
}

// Computes c[0..m_count)[kColumns registers]. If factor is nullptr, c is overwritten.
template <class E, int kColumns, int kM = kGemmRows, LeftOperand kLeft = LeftOperand::kRows>
TILEWISE_INLINE void gemm_strided(Rows<E> a, std::int64_t m_count, Panels<E> panels,
                                  std::int64_t depth, const Vec<SumOf<E>>* factor,
                                  Prefetcher* prefetcher) {
  std::int64_t m = 0;
  for (; m + kM <= m_count; m += kM) {
    if (prefetcher != nullptr) prefetcher->step();
    const Panels<E> here = {panels.b, panels.b_stride, panels.c + m * panels.c_stride,
                            panels.c_stride};
    gemm_block<E, kM, kColumns, kLeft>({a.data + m * a.stride, a.stride}, here, depth, factor);
  }
  if constexpr (kM > 1) {
    if (m < m_count) {
      const Panels<E> here = {panels.b, panels.b_stride, panels.c + m * panels.c_stride,
                              panels.c_stride};
      gemm_strided<E, kColumns, kM / 2, kLeft>({a.data + m * a.stride, a.stride}, m_count - m, here,
                                               depth, factor, nullptr);
    }
  }
}

// Calls f(Columns<n>{}) with the least number n of registers, at most kMost, that holds `lanes`
// lanes.
template <int n>
struct Columns {
  static constexpr int kCount = n;
};
template <class T, int kMost, class Function>
TILEWISE_INLINE void with_columns(std::int64_t lanes, Function f) {
  if constexpr (kMost > 1) {
    if (lanes <= (kMost - 1) * Vec<T>::kLanes) return with_columns<T, kMost - 1>(lanes, f);
  }
  f(Columns<kMost>{});
}

// GEMM with `a` in rows. b and c are panels of kWidth lanes, of which the first kColumns registers
// are computed.
template <class E, int kColumns, std::int64_t kWidth = kColumns* Vec<E>::kLanes>
void gemm(Rows<E> a, std::int64_t m_count, const E* b, std::int64_t depth, SumOf<E>* c,
          Prefetcher* prefetcher = nullptr) {
  gemm_strided<E, kColumns>(a, m_count, {b, kWidth, c, kWidth}, depth, nullptr, prefetcher);
}

// GEMM with `a` in packed columns, starting at the first of `depth` rows. c has m_count rows,
// rounded up to kGemmRows.
template <class E, int kColumns, std::int64_t kWidth = kColumns* Vec<E>::kLanes>
void gemm_packed(const E* a, std::int64_t m_count, const E* b, std::int64_t depth, SumOf<E>* c,
                 const Vec<SumOf<E>>* factor, Prefetcher* prefetcher = nullptr) {
  for (std::int64_t m = 0; m < m_count; m += kGemmRows) {
    if (prefetcher != nullptr) prefetcher->step();
    gemm_block<E, kGemmRows, kColumns, LeftOperand::kPacked>(
        {a + m / kGemmRows * kPackedBlock<E>, 0}, {b, kWidth, c + m * kWidth, kWidth}, depth,
        factor);
  }
}

// c += a * b for matrices that are `registers` registers wide. With kRowsAccumulate the terms are
// added to c one after the other, so that a depth cut in pieces gives the same bits; otherwise the
// completed sum is added to c.
template <class E, LeftOperand kLeft = LeftOperand::kRows>
void gemm_wide(Rows<E> a, std::int64_t m_count, Panels<E> panels, std::int64_t registers,
               std::int64_t depth) {
  using T = SumOf<E>;
  Vec<T> one[kWideColumns];
  for (int n = 0; n < kWideColumns; ++n) one[n] = Vec<T>(T(1));
  const Vec<T>* const factor = kLeft == LeftOperand::kRowsAccumulate ? nullptr : one;
  std::int64_t done = 0;
  const auto columns = [&](auto count) {
    const std::int64_t at = done * Vec<T>::kLanes;
    gemm_strided<E, decltype(count)::kCount, kGemmRows, kLeft>(
        a, m_count, {panels.b + at, panels.b_stride, panels.c + at, panels.c_stride}, depth, factor,
        nullptr);
    done += decltype(count)::kCount;
  };
  while (done + kWideColumns <= registers) columns(Columns<kWideColumns>{});
  if (registers - done == 2) columns(Columns<2>{});
  if (registers - done == 1) columns(Columns<1>{});
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
