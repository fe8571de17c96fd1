// The two products of decoding, where few queries visit many keys. SIMD lanes are columns of K and
// V, whose rows are read in place and in order, for a few rows of queries at a time. A score is the
// sum of the lanes of a register; a tree of shuffles makes one register of many such sums at once
// (lane_sums.h). Rows have the form of padded_row.h.
#pragma once

#include "cpu/decode/lane_sums.h"
#include "cpu/decode/padded_row.h"
#include "cpu/simd/conversion.h"
#include "cpu/simd/gemm.h"
#include "cpu/simd/prefetch.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Sums of a block. With 32 registers there are 16 sums, 4 keys and 1 row of queries from memory; 16
// chains hide a latency of 4 on 2 ports twice over. With 16 registers there are 8 sums, 2 to 4 keys
// and 1 register for the queries.
inline constexpr int kDecodeSums = kRegisters == 32 ? 16 : 8;
// The greatest number of query rows of a block. 4 rows x 4 keys take 8 loads for 16 multiply-adds;
// with 16 registers 4 x 2 take 6 for 8.
inline constexpr int kDecodeRows = 4;

// Prefetch steps that belong to the loads of `loads` registers of a row: one per cache line that
// they read.
template <class T, class S>
constexpr int steps_of_load(int loads) {
  const int lines =
      loads * Vec<T>::kLanes * static_cast<int>(sizeof(S)) / static_cast<int>(Prefetcher::kLine);
  return lines > 1 ? lines : 1;
}

// ---- scores: S = Q K^T ----

// Adds up the lanes of each sum and stores scores[r][key].
template <class T, int kRows>
TILEWISE_INLINE void store_scores(const Vec<T>* sums, T* scores, std::int64_t score_stride) {
  constexpr int kKeys = kDecodeSums / kRows;
  T totals[kDecodeSums];
#pragma GCC unroll 8
  for (int i = 0; i < kDecodeSums; i += Vec<T>::kLanes) sum_lanes<T>(sums + i).store(totals + i);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
    __builtin_memcpy(scores + r * score_stride, totals + r * kKeys, kKeys * sizeof(T));
}

// scores[r][key] for a block of kRows rows of queries and kDecodeSums / kRows keys. `keys` points
// to the rows of K. Queries are padded rows, with zeros in the lanes that are not new_lanes().
template <class T, class S, int kRows, class Prefetch>
TILEWISE_INLINE void score_block(const S* const* keys, const T* queries, Padded<T> row, T* scores,
                                 std::int64_t score_stride, Prefetch& prefetcher) {
  constexpr int kLanes = Vec<T>::kLanes;
  constexpr int kKeys = kDecodeSums / kRows;
  constexpr int kProductsOfStep = kDecodeSums / steps_of_load<T, S>(kKeys);
  Vec<T> sums[kDecodeSums];
#pragma GCC unroll 16
  for (int i = 0; i < kDecodeSums; ++i) sums[i] = Vec<T>(T(0));
  const std::int64_t size = row.size();
  for (std::int64_t c = 0; c < row.whole(); c += kLanes) {
    Vec<T> key[kKeys];
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) key[j] = load_converted<T>(keys[j] + c);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> query = Vec<T>::load(queries + r * size + c);
#pragma GCC unroll 16
      for (int j = 0; j < kKeys; ++j) {
        if ((r * kKeys + j) % kProductsOfStep == 0) prefetcher.step();
        sums[r * kKeys + j] = multiply_add(key[j], query, sums[r * kKeys + j]);
      }
    }
  }
  if (row.has_tail()) {
    const Mask<T> new_lanes = row.new_lanes();
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) {
      const Vec<T> key =
          select(new_lanes, load_converted<T>(keys[j] + row.width - kLanes), Vec<T>(T(0)));
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Vec<T> query = Vec<T>::load(queries + r * size + row.whole());
        sums[r * kKeys + j] = multiply_add(key, query, sums[r * kKeys + j]);
      }
    }
  }
  store_scores<T, kRows>(sums, scores, score_stride);
}

// Scores of bf16 by vdpbf16ps take half as many instructions as multiply-adds, and no conversion.
// The products are exact; denormals count as zeros.
#if defined(__AVX512BF16__)
inline constexpr bool kHasBf16Dot = true;
#else
inline constexpr bool kHasBf16Dot = false;
#endif
inline constexpr std::int64_t kBf16Columns = 32;  // of one register

// True if queries are stored as bf16; each row then takes the first half of its space.
template <class T, class S>
TILEWISE_INLINE bool uses_bf16_dot(std::int64_t width) {
  return kHasBf16Dot && std::is_same_v<T, float> && std::is_same_v<S, math::BFloat16> &&
         width % kBf16Columns == 0;
}

#if defined(__AVX512BF16__)
// score_block() by vdpbf16ps, for uses_bf16_dot().
template <int kRows, class Prefetch>
TILEWISE_INLINE void bf16_score_block(const math::BFloat16* const* keys, const float* queries,
                                      std::int64_t width, float* scores, std::int64_t score_stride,
                                      Prefetch& prefetcher) {
  constexpr int kKeys = kDecodeSums / kRows;
  __m512 sums[kDecodeSums];
#pragma GCC unroll 16
  for (int i = 0; i < kDecodeSums; ++i) sums[i] = _mm512_setzero_ps();
  for (std::int64_t c = 0; c < width; c += kBf16Columns) {
    __m512bh key[kKeys];
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) __builtin_memcpy(&key[j], keys[j] + c, sizeof(key[j]));
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      __m512bh query;
      __builtin_memcpy(&query, queries + r * width + c / 2, sizeof(query));
#pragma GCC unroll 16
      for (int j = 0; j < kKeys; ++j) {
        if ((r * kKeys + j) % kRows == 0) prefetcher.step();  // kKeys times, one per line
        sums[r * kKeys + j] = _mm512_dpbf16_ps(sums[r * kKeys + j], key[j], query);
      }
    }
  }
  Vec<float> totals[kDecodeSums];
#pragma GCC unroll 16
  for (int i = 0; i < kDecodeSums; ++i) totals[i] = Vec<float>(Vec<float>::Native(sums[i]));
  store_scores<float, kRows>(totals, scores, score_stride);
}
#endif

// ---- outputs: O = P V ----

// Probabilities of kRows rows, and the addresses of their outputs.
template <class T>
struct OutputRows {
  const T* probs;
  std::int64_t prob_stride;
  const T* factor;  // the output so far is multiplied by it
  T* out;
  std::int64_t out_stride;
};

// out[r] = out[r] * factor[r] + the sum over keys of probs[r][key] * row of V, for kColumns
// registers. The sum is completed before it is added to out, because short sums lose less.
template <class T, int kRows, int kColumns, class Source, class Prefetch>
TILEWISE_INLINE void output_block(Source values, std::int64_t keys, OutputRows<T> rows,
                                  Prefetch& shared_prefetcher) {
  using S = typename Source::Number;
  constexpr int kLanes = Vec<T>::kLanes;
  constexpr int kProductsOfStep = kRows * kColumns / steps_of_load<T, S>(kColumns);
  Prefetch prefetcher = shared_prefetcher;
  Vec<T> sums[kRows][kColumns];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < kColumns; ++n) sums[r][n] = Vec<T>(T(0));
  }
  for (std::int64_t j = 0; j < keys; ++j) {
    Vec<T> value[kColumns];
#pragma GCC unroll 8
    for (int n = 0; n < kColumns; ++n) value[n] = load_converted<T>(values[j] + n * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> prob(rows.probs[r * rows.prob_stride + j]);
#pragma GCC unroll 8
      for (int n = 0; n < kColumns; ++n) {
        if ((r * kColumns + n) % kProductsOfStep == 0) prefetcher.step();
        sums[r][n] = multiply_add(prob, value[n], sums[r][n]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < kColumns; ++n) {
      T* const to = rows.out + r * rows.out_stride + n * kLanes;
      multiply_add(Vec<T>::load(to), Vec<T>(rows.factor[r]), sums[r][n]).store(to);
    }
  }
  shared_prefetcher = prefetcher;
}

// All columns of kRows rows: kColumns registers at a time, then half as many. The tail of a row is
// computed by itself.
template <class T, int kRows, int kColumns, class Source, class Prefetch>
TILEWISE_INLINE void output_columns(Source values, std::int64_t keys, Padded<T> row,
                                    std::int64_t first, OutputRows<T> rows, Prefetch& prefetcher) {
  constexpr std::int64_t kStep = kColumns * Vec<T>::kLanes;
  for (; first + kStep <= row.whole(); first += kStep) {
    const OutputRows<T> here = {rows.probs, rows.prob_stride, rows.factor, rows.out + first,
                                rows.out_stride};
    output_block<T, kRows, kColumns>(values.from_column(first), keys, here, prefetcher);
  }
  if constexpr (kColumns > 1) {
    output_columns<T, kRows, kColumns / 2>(values, keys, row, first, rows, prefetcher);
  } else if (row.has_tail()) {
    const OutputRows<T> here = {rows.probs, rows.prob_stride, rows.factor, rows.out + row.whole(),
                                rows.out_stride};
    output_block<T, kRows, 1>(values.from_column(row.width - Vec<T>::kLanes), keys, here,
                              prefetcher);
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
