// One block of keys met by all rows of an item: scores, mask, softmax, output. A row is one query
// of one query head; the rows of a kv head's group lie together, head after head, so that K and V
// are read once for all of them.
#pragma once

#include "cpu/accumulate.h"
#include "cpu/decode_product.h"
#include "math/integer.h"
#include "math/softmax_state.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Keys of a block: 16 KB of K at 128 fp32 columns, which stay in the L1 while all rows pass; two
// registers of scores to a row hide the shuffles of its maximum and sum.
inline constexpr int kDecodeKeys = 32;

template <class T>
struct DecodeScratch {
  T* queries;  // (rows, padded D)
  T* out;      // (rows, padded Dv)
  T* max;      // (rows)
  T* sum;      // (rows)
  T* rescale;  // (rows): of a block
  T* scores;   // (rows, kDecodeKeys)
  T* keep;     // (queries, kDecodeKeys), with dropout
  T* staged;   // (kDecodeKeys, the larger padded width)
  MaskScratch<T> mask;
  std::uint8_t* seen;  // (rows, kDecodeKeys): see record_seen()
  Band* bands;
  std::int64_t loaded = -1;  // whose queries are there
};

// A block of keys of an item. `rows` and `first_row` are those of one kv head.
struct DecodeBlock {
  HeadContext context;   // of the first query head
  std::int64_t group;    // query heads of a kv head
  std::int64_t queries;  // of the sequence
  std::int64_t first;    // key of the sequence
  std::int64_t keys;
  bool careful;

  TILEWISE_INLINE std::int64_t rows() const { return group * queries; }
};

// ---- operands ----

// Rows of K or V converted, and padded with zeros to a register. `finite_only`: rows that hold
// anything else become zeros.
template <class T, class S>
Rows<T> stage_block(Rows<S> rows, std::int64_t count, std::int64_t width, bool finite_only,
                    T* staged) {
  const std::int64_t size = padded<T>(width).width;
  for (std::int64_t j = 0; j < count; ++j) {
    T* const to = staged + j * size;
    const S* const from = rows.data + j * rows.stride;
    std::int64_t c = 0;
    for (; c + Vec<T>::kLanes <= width; c += Vec<T>::kLanes)
      load_converted<T>(from + c).store(to + c);
    for (; c < width; ++c) to[c] = math::load<T>(from[c]);
    for (; c < size; ++c) to[c] = T(0);
    if (finite_only && !row_is_finite(to, width)) {
      for (c = 0; c < size; ++c) to[c] = T(0);
    }
  }
  return {staged, size};
}

// Narrow rows need their padding; for several blocks of rows, each number is converted once.
template <class T, class S>
TILEWISE_INLINE bool needs_staging(std::int64_t width, std::int64_t rows) {
  return width < Vec<T>::kLanes || (!std::is_same_v<T, S> && rows > kDecodeRows);
}

// ---- scores ----

template <class T, class S, int kRows>
void score_rows(Rows<S> k, std::int64_t count, const T* queries, Padded<T> row, T* scores,
                ReadAhead& shared_ahead) {
  ReadAhead ahead = shared_ahead;
  constexpr int kKeys = kDecodeSums / kRows;
  for (std::int64_t j = 0; j < count; j += kKeys) {
    const S* keys[kKeys];  // beyond the last it is repeated
    for (int i = 0; i < kKeys; ++i) keys[i] = k.data + math::min(j + i, count - 1) * k.stride;
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, float> && std::is_same_v<S, math::BFloat16>) {
      if (scores_by_pairs<T, S>(row.width)) {
        pair_score_block<kRows>(keys, queries, row.width, scores + j, kDecodeKeys, ahead);
        continue;
      }
    }
#endif
    score_block<T, S, kRows>(keys, queries, row, scores + j, kDecodeKeys, ahead);
  }
  shared_ahead = ahead;
}

// Registers of an output block by its rows: 16 sums (8 with 16 registers) hide the latency twice.
constexpr int output_registers(int rows) { return kDecodeSums / rows < 8 ? kDecodeSums / rows : 8; }

// Steps in which a row's softmax reads ahead: it takes as long as the products with so many lines.
inline constexpr int kFoldSteps = 8;

// Sum of f(rows) over the passes that a block takes for `rows` rows of queries.
template <class Function>
TILEWISE_INLINE std::int64_t sum_over_passes(std::int64_t rows, Function f) {
  return rows / 4 * f(4) + rows % 4 / 2 * f(2) + rows % 2 * f(1);
}

// How many steps ahead the scores of a block take with their softmax; its outputs. S: of the rows
// as the products read them.
template <class T, class S>
TILEWISE_INLINE std::int64_t score_steps(std::int64_t keys, std::int64_t rows, std::int64_t width) {
  const bool pairs = scores_by_pairs<T, S>(width);
  const std::int64_t columns =
      pairs ? width / kPairColumns : padded<T>(width).whole() / Vec<T>::kLanes;
  const auto pass = [&](int pass_rows) {
    const int at_once = kDecodeSums / pass_rows;
    return math::ceil_div(keys, at_once) * columns * (pairs ? at_once : load_steps<T, S>(at_once));
  };
  return sum_over_passes(rows, pass) + rows * kFoldSteps;
}
template <class T, class S>
TILEWISE_INLINE std::int64_t output_steps(std::int64_t keys, std::int64_t rows,
                                          std::int64_t width) {
  const auto pass = [&](int pass_rows) {
    std::int64_t steps = 0;
    std::int64_t left = padded<T>(width).size() / Vec<T>::kLanes;
    for (int columns = output_registers(pass_rows); columns > 0; columns /= 2) {
      steps += left / columns * load_steps<T, S>(columns);
      left %= columns;
    }
    return keys * steps;
  };
  return sum_over_passes(rows, pass);
}

template <class T, class S>
void score_all_rows(Rows<S> k, std::int64_t count, std::int64_t rows, const T* queries,
                    Padded<T> row, T* scores, ReadAhead& ahead) {
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    score_rows<T, S, 4>(k, count, queries + r * row.size(), row, scores + r * kDecodeKeys, ahead);
  }
  if (rows - r >= 2) {
    score_rows<T, S, 2>(k, count, queries + r * row.size(), row, scores + r * kDecodeKeys, ahead);
    r += 2;
  }
  if (rows - r == 1)
    score_rows<T, S, 1>(k, count, queries + r * row.size(), row, scores + r * kDecodeKeys, ahead);
}

// ---- softmax ----

template <class T, int kDistance, int... kLane>
TILEWISE_INLINE Vec<T> swap_lanes(Vec<T> a, std::integer_sequence<int, kLane...>) {
  return Vec<T>(__builtin_shufflevector(a.v, a.v, (kLane ^ kDistance)...));
}

// The largest lane, in all lanes; no lane is NaN.
template <class T, int kDistance = Vec<T>::kLanes / 2>
TILEWISE_INLINE Vec<T> largest_lane(Vec<T> a) {
  a = maximum(a, swap_lanes<T, kDistance>(a, std::make_integer_sequence<int, Vec<T>::kLanes>{}));
  if constexpr (kDistance > 1) return largest_lane<T, kDistance / 2>(a);
  return a;
}
template <class T, int kDistance = Vec<T>::kLanes / 2>
TILEWISE_INLINE Vec<T> sum_of_lanes(Vec<T> a) {
  a = a + swap_lanes<T, kDistance>(a, std::make_integer_sequence<int, Vec<T>::kLanes>{});
  if constexpr (kDistance > 1) return sum_of_lanes<T, kDistance / 2>(a);
  return a;
}

// Folds a row's scores of a block into its state and turns them into unnormalised probabilities.
// Gives the factor that the row's output so far must be multiplied by.
template <class T>
TILEWISE_INLINE T fold_scores(T* scores, const math::ExponentUnit<Vec<T>>& unit, T* max, T* sum) {
  constexpr int kLanes = Vec<T>::kLanes;
  const Vec<T> old_max(*max);
  Vec<T> lanes_max = old_max;
#pragma GCC unroll 16
  for (int lane = 0; lane < kDecodeKeys; lane += kLanes)
    lanes_max = maximum(Vec<T>::load(scores + lane), lanes_max);
  const Vec<T> new_max = largest_lane(lanes_max);
  const Vec<T> anchor = math::anchor(new_max);
  const Vec<T> rescale = math::weight(old_max, anchor, unit);
  Vec<T> total(T(0));  // of the block by itself: short sums lose less
#pragma GCC unroll 16
  for (int lane = 0; lane < kDecodeKeys; lane += kLanes) {
    const Vec<T> weight = math::weight(Vec<T>::load(scores + lane), anchor, unit);
    weight.store(scores + lane);
    total = total + weight;
  }
  *max = new_max.v[0];
  *sum = multiply_add(Vec<T>(*sum), rescale, sum_of_lanes(total)).v[0];
  return rescale.v[0];
}

// From products to probabilities, for the rows of one kv head, from row `first_row` of the item on.
template <class T>
void softmax_rows(const DecodeBlock& block, std::int64_t first_row, const DecodeScratch<T>& scratch,
                  ReadAhead& ahead) {
  const Problem& problem = *block.context.problem;
  const Frame frame = {block.first, block.keys, 0, block.queries};
  const TileClass tile_class = classify(block.context, Lanes::kKeys, frame);
  const math::ExponentUnit<Vec<T>> unit = ScoreUnits<T>(problem).exponent();
  for (std::int64_t g = 0; g < block.group; ++g) {
    HeadContext context = block.context;
    context.head += first_row / block.queries + g;
    const std::int64_t at = first_row + g * block.queries;
    T* const scores = scratch.scores + at * kDecodeKeys;
    if (tile_class == TileClass::kEmpty) {
      for (std::int64_t i = 0; i < block.queries * kDecodeKeys; ++i)
        scores[i] = -math::Limits<T>::kInfinity;
    } else {
      finish_scores<T, Lanes::kKeys, kDecodeKeys>(context, frame, tile_class, scratch.mask, scores,
                                                  nullptr);
    }
    for (std::int64_t i = 0; i < block.queries; ++i) {
      for (std::int64_t lane = block.keys; lane < kDecodeKeys; ++lane)
        scores[i * kDecodeKeys + lane] = -math::Limits<T>::kInfinity;
    }
    if (block.careful) {
      record_seen<T, kDecodeKeys>(block.queries, scores, scratch.seen + at * kDecodeKeys);
    }
    for (std::int64_t i = 0; i < block.queries; ++i) {
      for (int step = 0; step < kFoldSteps; ++step) ahead.step();
      scratch.rescale[at + i] =
          fold_scores(scores + i * kDecodeKeys, unit, scratch.max + at + i, scratch.sum + at + i);
    }
    if (problem.dropout_p > 0) {
      fill_dropout<T, Lanes::kKeys, kDecodeKeys>(context, frame, kept_factor<T>(problem),
                                                 scratch.keep);
      for (std::int64_t i = 0; i < block.queries; ++i) {
        for (std::int64_t j = 0; j < block.keys; ++j)
          scores[i * kDecodeKeys + j] *= scratch.keep[i * kDecodeKeys + j];
      }
    }
  }
}

// ---- outputs ----

template <class T, class S, int kRows>
void output_rows(Rows<S> v, std::int64_t keys, Padded<T> row, std::int64_t first_row,
                 const DecodeScratch<T>& scratch, ReadAhead& ahead) {
  output_columns<T, S, kRows, output_registers(kRows)>(
      v, keys, row, 0,
      {scratch.scores + first_row * kDecodeKeys, kDecodeKeys, scratch.rescale + first_row,
       scratch.out + first_row * row.size(), row.size()},
      ahead);
}

template <class T, class S>
void output_all_rows(Rows<S> v, std::int64_t keys, std::int64_t rows, Padded<T> row,
                     std::int64_t first_row, const DecodeScratch<T>& scratch, ReadAhead& ahead) {
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) output_rows<T, S, 4>(v, keys, row, first_row + r, scratch, ahead);
  if (rows - r >= 2) {
    output_rows<T, S, 2>(v, keys, row, first_row + r, scratch, ahead);
    r += 2;
  }
  if (rows - r == 1) output_rows<T, S, 1>(v, keys, row, first_row + r, scratch, ahead);
}

// The second half of the careful form (accumulate.h): rows of V that are not finite took part as
// zeros; each is added to the rows of the item that see it, and to no others.
template <class T, class S>
void add_seen_rows(Rows<S> v, const DecodeBlock& block, std::int64_t width, Padded<T> row,
                   std::int64_t first_row, const DecodeScratch<T>& scratch) {
  for (std::int64_t j = 0; j < block.keys; ++j) {
    const S* const from = v.data + j * v.stride;
    bool finite = true;
    for (std::int64_t c = 0; c < width; ++c)
      finite = finite && math::is_finite(math::load<T>(from[c]));
    if (finite) continue;
    for (std::int64_t r = first_row; r < first_row + block.rows(); ++r) {
      if (scratch.seen[r * kDecodeKeys + j] == 0) continue;
      const T weight = scratch.scores[r * kDecodeKeys + j];
      for (std::int64_t at = 0; at < row.size(); ++at) {
        const std::int64_t c = at < row.whole() ? at : at - row.size() + row.width;
        if (c < width) scratch.out[r * row.size() + at] += math::load<T>(from[c]) * weight;
      }
    }
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
