// The steps of a block of keys for all rows of a work item: operands, scores, outputs (softmax.h is
// between the two).
#pragma once

#include "cpu/decode/gemm.h"
#include "cpu/decode/softmax.h"
#include "cpu/simd/dequantise.h"
#include "cpu/simd/finite.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// ---- operands ----

// The way in which a block of K or V is read.
template <class T>
struct BlockForm {
  T unit = T(1);             // the power of two by which it is multiplied
  bool finite_only = false;  // rows that are not finite are zeros

  TILEWISE_INLINE bool in_place() const { return unit == T(1) && !finite_only; }
};

// Converts whole registers of a row, and multiplies them by a unit.
template <class T, class S>
TILEWISE_INLINE void stage_registers(const S* from, std::int64_t registers, T unit, T* to) {
  constexpr int kLanes = Vec<T>::kLanes;
  if (unit == T(1)) {
    for (std::int64_t n = 0; n < registers; ++n)
      load_converted<T>(from + n * kLanes).store(to + n * kLanes);
  } else if (lifts_denormals(unit)) {
    for (std::int64_t n = 0; n < registers; ++n)
      multiply_denormals(load_converted<T>(from + n * kLanes), unit).store(to + n * kLanes);
  } else {
    for (std::int64_t n = 0; n < registers; ++n)
      (load_converted<T>(from + n * kLanes) * Vec<T>(unit)).store(to + n * kLanes);
  }
}

// Converts rows of K or V and pads them with zeros to a register.
template <class T, class Source>
Rows<T> stage_block(Source rows, std::int64_t count, std::int64_t width, const BlockForm<T>& form,
                    T* staged) {
  const std::int64_t size = padded<T>(width).width;
  for (std::int64_t j = 0; j < count; ++j) {
    T* const to = staged + j * size;
    const auto* const from = rows[j];
    const std::int64_t registers = width / Vec<T>::kLanes;
    stage_registers<T>(from, registers, form.unit, to);
    std::int64_t c = registers * Vec<T>::kLanes;
    for (; c < width; ++c) to[c] = math::load<T>(from[c]) * form.unit;
    for (; c < size; ++c) to[c] = T(0);
    if (form.finite_only && !row_is_finite<T>(to, width)) {
      for (c = 0; c < size; ++c) to[c] = T(0);
    }
  }
  return {staged, size};
}

// Rows of less than a register need the padding. For several blocks of query rows, staging converts
// each number only once. fp8 is always converted first.
template <class T, class S>
TILEWISE_INLINE bool needs_staging(std::int64_t width, std::int64_t rows) {
  return width < Vec<T>::kLanes || std::is_same_v<S, Float8Code> ||
         (!std::is_same_v<T, S> && rows > kDecodeRows);
}

// ---- scores ----

template <class T, int kRows, class Source, class Prefetch>
void score_rows(Source k, std::int64_t count, const T* queries, Padded<T> row, T* scores,
                Prefetch& shared_prefetcher) {
  using S = typename Source::Number;
  Prefetch prefetcher = shared_prefetcher;
  constexpr int kKeys = kDecodeSums / kRows;
  for (std::int64_t j = 0; j < count; j += kKeys) {
    const S* keys[kKeys];  // the last one is repeated
    for (int i = 0; i < kKeys; ++i) keys[i] = k[math::min(j + i, count - 1)];
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, float> && std::is_same_v<S, math::BFloat16>) {
      if (uses_bf16_dot<T, S>(row.width)) {
        bf16_score_block<kRows>(keys, queries, row.width, scores + j, kDecodeKeys, prefetcher);
        continue;
      }
    }
#endif
    score_block<T, S, kRows>(keys, queries, row, scores + j, kDecodeKeys, prefetcher);
  }
  shared_prefetcher = prefetcher;
}

// The width of an output block in registers: 16 sums (8 with 16 registers) hide the latency twice
// over.
constexpr int output_registers(int rows) { return kDecodeSums / rows < 8 ? kDecodeSums / rows : 8; }

// Sum of f(rows) over the passes that a block makes for `rows` rows of queries.
template <class Function>
TILEWISE_INLINE std::int64_t sum_over_passes(std::int64_t rows, Function f) {
  return rows / 4 * f(4) + rows % 4 / 2 * f(2) + rows % 2 * f(1);
}

// Prefetch steps of the scores of a block, with their softmax, and of its outputs. S is the type of
// the rows as the products read them.
template <class T, class S>
TILEWISE_INLINE std::int64_t score_steps(std::int64_t keys, std::int64_t rows, std::int64_t width) {
  const bool pairs = uses_bf16_dot<T, S>(width);
  const std::int64_t columns =
      pairs ? width / kBf16Columns : padded<T>(width).whole() / Vec<T>::kLanes;
  const auto pass = [&](int pass_rows) {
    const int at_once = kDecodeSums / pass_rows;
    return math::ceil_div(keys, at_once) * columns *
           (pairs ? at_once : steps_of_load<T, S>(at_once));
  };
  return sum_over_passes(rows, pass) + rows * kSoftmaxSteps;
}
template <class T, class S>
TILEWISE_INLINE std::int64_t output_steps(std::int64_t keys, std::int64_t rows,
                                          std::int64_t width) {
  const auto pass = [&](int pass_rows) {
    std::int64_t steps = 0;
    std::int64_t left = padded<T>(width).size() / Vec<T>::kLanes;
    for (int columns = output_registers(pass_rows); columns > 0; columns /= 2) {
      steps += left / columns * steps_of_load<T, S>(columns);
      left %= columns;
    }
    return keys * steps;
  };
  return sum_over_passes(rows, pass);
}

template <class T, class Source, class Prefetch>
void score_all_rows(Source k, std::int64_t count, std::int64_t rows, const T* queries,
                    Padded<T> row, T* scores, Prefetch& prefetcher) {
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    score_rows<T, 4>(k, count, queries + r * row.size(), row, scores + r * kDecodeKeys, prefetcher);
  }
  if (rows - r >= 2) {
    score_rows<T, 2>(k, count, queries + r * row.size(), row, scores + r * kDecodeKeys, prefetcher);
    r += 2;
  }
  if (rows - r == 1)
    score_rows<T, 1>(k, count, queries + r * row.size(), row, scores + r * kDecodeKeys, prefetcher);
}

// ---- outputs ----

template <class T, int kRows, class Source, class Prefetch>
void output_rows(Source v, std::int64_t keys, Padded<T> row, std::int64_t first_row,
                 const DecodeScratch<T>& scratch, Prefetch& prefetcher) {
  output_columns<T, kRows, output_registers(kRows)>(
      v, keys, row, 0,
      {scratch.scores + first_row * kDecodeKeys, kDecodeKeys, scratch.rescale + first_row,
       scratch.out + first_row * row.size(), row.size()},
      prefetcher);
}

template <class T, class Source, class Prefetch>
void output_all_rows(Source v, std::int64_t keys, std::int64_t rows, Padded<T> row,
                     std::int64_t first_row, const DecodeScratch<T>& scratch,
                     Prefetch& prefetcher) {
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) output_rows<T, 4>(v, keys, row, first_row + r, scratch, prefetcher);
  if (rows - r >= 2) {
    output_rows<T, 2>(v, keys, row, first_row + r, scratch, prefetcher);
    r += 2;
  }
  if (rows - r == 1) output_rows<T, 1>(v, keys, row, first_row + r, scratch, prefetcher);
}

// Returns true if some row of queries of a kv head does not see a row of V that is not finite.
template <class T, class Source>
bool hides_non_finite_values(Source v, const DecodeBlock& block, std::int64_t first_row,
                             const DecodeScratch<T>& scratch) {
  std::uint8_t seen[kDecodeKeys];  // by all rows
  __builtin_memset(seen, 1, sizeof(seen));
  for (std::int64_t r = first_row; r < first_row + block.rows(); ++r) {
    for (int j = 0; j < kDecodeKeys; ++j) seen[j] &= scratch.seen[r * kDecodeKeys + j];
  }
  for (std::int64_t j = 0; j < block.keys; ++j) {
    if (seen[j] == 0 && !row_is_finite<T>(v[j], block.context.problem->value_dim)) return true;
  }
  return false;
}

// Rows of V that are not finite entered the product as zeros (common/non_finite.h); each is now
// added to those rows of the kv head that see it, and to no others.
//
// first_row: of the kv head; unit: that of V
template <class T, class Source>
void add_non_finite_values(Source v, const DecodeBlock& block, T unit, std::int64_t first_row,
                           const DecodeScratch<T>& scratch) {
  const std::int64_t width = block.context.problem->value_dim;
  const Padded<T> row = padded<T>(width);
  for (std::int64_t j = 0; j < block.keys; ++j) {
    const auto* const from = v[j];
    if (row_is_finite<T>(from, width)) continue;
    for (std::int64_t r = first_row; r < first_row + block.rows(); ++r) {
      if (scratch.seen[r * kDecodeKeys + j] == 0) continue;
      const T prob = scratch.scores[r * kDecodeKeys + j];
      for (std::int64_t at = 0; at < row.size(); ++at) {
        const std::int64_t c = at < row.whole() ? at : at - row.size() + row.width;
        if (c < width) scratch.out[r * row.size() + at] += math::load<T>(from[c]) * unit * prob;
      }
    }
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
