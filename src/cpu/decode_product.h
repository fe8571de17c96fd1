// The two products of decoding, where few queries meet many keys: lanes = columns of K and V, whose
// rows are read in place and in order, a few rows of queries at a time. Scores are sums over a
// register's lanes; a tree of shuffles makes one register of many such sums at once.
//
// Widths of one register or more are read without masks: the last register of a row begins where
// it ends with the row, and the columns that it repeats are taken out of the sum (scores) or kept
// in a place of their own (outputs). `Padded` is that form of a row: whole registers, then the last
// one.
#pragma once

#include "cpu/operand.h"
#include "math/integer.h"
#include "math/mask_rule.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Sums of a block. 32 registers: 16 sums, 4 keys, 1 row of queries from memory; 16 chains hide a
// latency of 4 on 2 ports twice over. 16 registers: 8 sums, 2 to 4 keys, 1 for the queries.
inline constexpr int kDecodeSums = kRegisters == 32 ? 16 : 8;
// Rows of queries to a block at most: 4 rows x 4 keys take 8 loads for 16 multiply-adds; with 16
// registers 4 x 2 take 6 for 8.
inline constexpr int kDecodeRows = 4;

// A row of `width` columns in registers.
template <class T>
struct Padded {
  static constexpr std::int64_t kLanes = Vec<T>::kLanes;
  std::int64_t width;  // at least one register

  TILEWISE_INLINE std::int64_t whole() const { return width / kLanes * kLanes; }
  TILEWISE_INLINE bool has_rest() const { return width % kLanes != 0; }
  TILEWISE_INLINE std::int64_t size() const { return math::round_up(width, kLanes); }
  // Lanes of the last register that the one before it does not hold.
  TILEWISE_INLINE Mask<T> fresh() const {
    return Vec<T>(static_cast<T>(size() - width)) <= Vec<T>::iota();
  }
};

template <class T>
TILEWISE_INLINE Padded<T> padded(std::int64_t width) {
  return {math::max(width, Vec<T>::kLanes)};
}

// ---- sums over lanes ----

// Lane `lane` of the even (odd = 0) or odd units of a and b: within each run of `units` units the
// first half comes from a, the second from b.
constexpr int unit_lane(int lanes, int lane, int unit, int units, int odd) {
  const int run = unit * units;
  const int number = lane % run / unit;
  const int half = units / 2;
  return (number < half ? 0 : lanes) + lane / run * run + (2 * (number % half) + odd) * unit +
         lane % unit;
}

// Sums of neighbouring units of a, then those of b.
template <class T, int kUnit, int kUnits, int... kLane>
TILEWISE_INLINE Vec<T> add_units(Vec<T> a, Vec<T> b, std::integer_sequence<int, kLane...>) {
  constexpr int kLanes = Vec<T>::kLanes;
  const Vec<T> even(
      __builtin_shufflevector(a.v, b.v, unit_lane(kLanes, kLane, kUnit, kUnits, 0)...));
  const Vec<T> odd(
      __builtin_shufflevector(a.v, b.v, unit_lane(kLanes, kLane, kUnit, kUnits, 1)...));
  return even + odd;
}

// totals[0]'s lane i = the sum of sums[i]'s lanes; kLanes registers in, one out. First within 128
// bits, where a shuffle costs least, then across them.
template <class T, int kUnit = 1, int kLeft = Vec<T>::kLanes>
TILEWISE_INLINE Vec<T> sum_lanes(const Vec<T>* sums) {
  constexpr int kLanes = Vec<T>::kLanes;
  constexpr int kNarrow = 16 / static_cast<int>(sizeof(T));  // lanes of 128 bits
  if constexpr (kLeft == 1) {
    return sums[0];
  } else {
    constexpr int kUnits = kUnit == 1 ? kNarrow : kLanes / kNarrow;
    constexpr bool kLastNarrow = kUnit == 1 && kLeft == 2 * (kLanes / kNarrow);
    Vec<T> half[kLeft / 2];
#pragma GCC unroll 8
    for (std::ptrdiff_t i = 0; i < kLeft / 2; ++i) {
      half[i] = add_units<T, kUnit, kUnits>(sums[2 * i], sums[2 * i + 1],
                                            std::make_integer_sequence<int, kLanes>{});
    }
    constexpr int kNextUnit = kLastNarrow ? kNarrow : kUnit;
    return sum_lanes<T, kNextUnit, kLeft / 2>(half);
  }
}

// ---- reading ahead ----

// Rows of a later block, asked for line by line while this one is computed: in even shares, also
// where no row is read. Lines that are asked for in bunches wait for each other, and the memory
// waits for whoever does not ask.
class ReadAhead {
 public:
  // `rows` rows of `bytes` bytes, `stride` bytes apart, in `steps` steps.
  TILEWISE_INLINE ReadAhead(const void* first, std::int64_t rows, std::int64_t bytes,
                            std::int64_t stride, std::int64_t steps)
      : at_(static_cast<const char*>(first)),
        end_(at_ + bytes),
        rows_(rows),
        bytes_(bytes),
        gap_(stride - bytes) {
    const std::int64_t lines = rows * (math::ceil_div(bytes, Ahead::kLine));
    rate_ = static_cast<int>((lines * kWhole + steps - 1) / math::max(steps, 1));
  }

  TILEWISE_INLINE void step() {
    for (share_ += rate_; share_ >= kWhole; share_ -= kWhole) {
      __builtin_prefetch(at_, 0, 2);  // into the L2
      at_ += Ahead::kLine;
      if (at_ >= end_) next_row();
    }
  }

 private:
  static constexpr int kWhole = 1 << 10;  // a line

  TILEWISE_INLINE void next_row() {
    if (--rows_ <= 0) {
      rate_ = 0;
      share_ = kWhole;  // and no more in this step
    }
    at_ = end_ + gap_;
    end_ = at_ + bytes_;
  }

  const char* at_;
  const char* end_;  // of the row
  std::int64_t rows_;
  std::int64_t bytes_;
  std::int64_t gap_;  // from one row to the next
  int rate_;          // lines of a step
  int share_ = 0;     // of a line: what is left from the steps before
};

// Steps of a block's products between `loads` registers of a row and the next ones: as many as the
// lines that they read.
template <class T, class S>
constexpr int load_steps(int loads) {
  const int lines =
      loads * Vec<T>::kLanes * static_cast<int>(sizeof(S)) / static_cast<int>(Ahead::kLine);
  return lines > 1 ? lines : 1;
}

// ---- scores ----

// The lanes of each sum added up, to scores[r][key].
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
// to the rows of K; queries are padded rows, zero in the lanes that are not fresh.
template <class T, class S, int kRows>
TILEWISE_INLINE void score_block(const S* const* keys, const T* queries, Padded<T> row, T* scores,
                                 std::int64_t score_stride, ReadAhead& ahead) {
  constexpr int kLanes = Vec<T>::kLanes;
  constexpr int kKeys = kDecodeSums / kRows;
  constexpr int kProductsOfStep = kDecodeSums / load_steps<T, S>(kKeys);
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
        if ((r * kKeys + j) % kProductsOfStep == 0) ahead.step();
        sums[r * kKeys + j] = multiply_add(key[j], query, sums[r * kKeys + j]);
      }
    }
  }
  if (row.has_rest()) {
    const Mask<T> fresh = row.fresh();
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) {
      const Vec<T> key =
          select(fresh, load_converted<T>(keys[j] + row.width - kLanes), Vec<T>(T(0)));
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Vec<T> query = Vec<T>::load(queries + r * size + row.whole());
        sums[r * kKeys + j] = multiply_add(key, query, sums[r * kKeys + j]);
      }
    }
  }
  store_scores<T, kRows>(sums, scores, score_stride);
}

// Pairs of bf16 products by the dot instruction: half the multiply-adds, no conversion. Products
// are exact; denormals count as 0.
#if defined(__AVX512BF16__)
inline constexpr bool kPairProducts = true;
#else
inline constexpr bool kPairProducts = false;
#endif
inline constexpr std::int64_t kPairColumns = 32;  // of a register

// True if queries are kept as bf16, each row in the first half of its place.
template <class T, class S>
TILEWISE_INLINE bool scores_by_pairs(std::int64_t width) {
  return kPairProducts && std::is_same_v<T, float> && std::is_same_v<S, math::BFloat16> &&
         width % kPairColumns == 0;
}

#if defined(__AVX512BF16__)
// score_block() for scores_by_pairs().
template <int kRows>
TILEWISE_INLINE void pair_score_block(const math::BFloat16* const* keys, const float* queries,
                                      std::int64_t width, float* scores, std::int64_t score_stride,
                                      ReadAhead& ahead) {
  constexpr int kKeys = kDecodeSums / kRows;
  __m512 sums[kDecodeSums];
#pragma GCC unroll 16
  for (int i = 0; i < kDecodeSums; ++i) sums[i] = _mm512_setzero_ps();
  for (std::int64_t c = 0; c < width; c += kPairColumns) {
    __m512bh key[kKeys];
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) __builtin_memcpy(&key[j], keys[j] + c, sizeof(key[j]));
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      __m512bh query;
      __builtin_memcpy(&query, queries + r * width + c / 2, sizeof(query));
#pragma GCC unroll 16
      for (int j = 0; j < kKeys; ++j) {
        if ((r * kKeys + j) % kRows == 0) ahead.step();  // kKeys lines
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

// ---- outputs ----

// Weights of kRows rows, and where their outputs lie.
template <class T>
struct OutputRows {
  const T* weights;
  std::int64_t weight_stride;
  const T* factor;  // what the output so far is multiplied by
  T* out;
  std::int64_t out_stride;
};

// out[r] = out[r] * factor[r] + the sum over keys of weights[r][key] * V's row, for kColumns
// registers. The sum is made by itself before it joins out: short sums lose less.
template <class T, class S, int kRows, int kColumns>
TILEWISE_INLINE void output_block(Rows<S> values, std::int64_t keys, OutputRows<T> rows,
                                  ReadAhead& shared_ahead) {
  constexpr int kLanes = Vec<T>::kLanes;
  constexpr int kProductsOfStep = kRows * kColumns / load_steps<T, S>(kColumns);
  ReadAhead ahead = shared_ahead;
  Vec<T> sums[kRows][kColumns];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < kColumns; ++n) sums[r][n] = Vec<T>(T(0));
  }
  for (std::int64_t j = 0; j < keys; ++j) {
    Vec<T> value[kColumns];
#pragma GCC unroll 8
    for (int n = 0; n < kColumns; ++n)
      value[n] = load_converted<T>(values.data + j * values.stride + n * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> weight(rows.weights[r * rows.weight_stride + j]);
#pragma GCC unroll 8
      for (int n = 0; n < kColumns; ++n) {
        if ((r * kColumns + n) % kProductsOfStep == 0) ahead.step();
        sums[r][n] = multiply_add(weight, value[n], sums[r][n]);
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
  shared_ahead = ahead;
}

// All of kRows rows' columns: kColumns registers at a time, then half as many; the last register of
// a row of odd width by itself.
template <class T, class S, int kRows, int kColumns>
TILEWISE_INLINE void output_columns(Rows<S> values, std::int64_t keys, Padded<T> row,
                                    std::int64_t first, OutputRows<T> rows, ReadAhead& ahead) {
  constexpr std::int64_t kStep = kColumns * Vec<T>::kLanes;
  for (; first + kStep <= row.whole(); first += kStep) {
    const OutputRows<T> here = {rows.weights, rows.weight_stride, rows.factor, rows.out + first,
                                rows.out_stride};
    output_block<T, S, kRows, kColumns>({values.data + first, values.stride}, keys, here, ahead);
  }
  if constexpr (kColumns > 1) {
    output_columns<T, S, kRows, kColumns / 2>(values, keys, row, first, rows, ahead);
  } else if (row.has_rest()) {
    const OutputRows<T> here = {rows.weights, rows.weight_stride, rows.factor,
                                rows.out + row.whole(), rows.out_stride};
    output_block<T, S, kRows, 1>({values.data + row.width - Vec<T>::kLanes, values.stride}, keys,
                                 here, ahead);
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
