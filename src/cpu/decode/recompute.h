// Splits that are computed again, because phi does not serve them (FlashDecoding++), or because
// sums of P V overflow although V is finite. In the second case their probs have a unit.
#pragma once

#include "cpu/common/value_unit.h"
#include "cpu/decode/split_kv.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Whether a row may see a key of the split.
TILEWISE_INLINE bool sees_split(const DecodeRange& range, std::int64_t r) {
  const math::KeyRange seen = keys_of_rows(range.context, r % range.context.sequence.q_len, 1);
  return seen.begin < range.keys.end && seen.end > range.keys.begin;
}

// Returns whether phi has served all rows of a split, and marks the others. Only these fall back to
// their maxima, so that no row's bits depend on another.
template <class T>
bool rows_are_safe(const DecodeRange& range, const DecodeScratch<T>& scratch) {
  const std::int64_t size = padded<T>(range.context.problem->value_dim).size();
  bool all = true;
  for (std::int64_t r = 0; r < range.rows(); ++r) {
    if (is_safe_row(scratch.sum[r], scratch.out + r * size, size)) continue;
    if (!sees_split(range, r)) continue;
    scratch.at_phi[r] = 0;
    all = false;
  }
  return all;
}

// The unit of probs where a row needs one: no sum over the keys of the sequence overflows with it,
// so that splits can be merged. All splits of a row that have a unit have this one.
template <class T>
TILEWISE_INLINE T least_prob_unit(const DecodeRange& range) {
  return least_unit<T>(value_room<T>(*range.context.problem, range.context.sequence.k_len));
}

// The largest finite |V| of a block.
template <class T>
T largest_value(const Problem& problem, const RowBlock& v, const DecodeScratch<T>& scratch) {
  if constexpr (kReadsFp8 && std::is_same_v<T, float>) {
    if (problem::is_fp8(problem.v.dtype)) {
      dequantise_rows(problem, v, v.head, v.width, scratch.staged);
      return largest_finite<T>(StagedView(scratch.staged, v).rows());
    }
  }
  return largest_finite<T>(v);
}

// Whether finite values of a kv head may make a sum over the keys overflow.
template <class T>
bool values_may_overflow(const DecodeRange& range, std::int64_t kv,
                         const DecodeScratch<T>& scratch) {
  const Problem& problem = *range.context.problem;
  const int room = value_room<T>(problem, range.context.sequence.k_len);
  DecodeBlock block = {range.context, range.heads.group, range.context.sequence.q_len, 0, 0};
  DecodeKeys keys = next_block(range, range.keys.begin);
  for (; keys.count > 0; keys = next_block(range, keys.first + kDecodeKeys)) {
    block.first = keys.first;
    block.keys = keys.count;
    const RowBlock v = head_block<T>(range, block, kv).v;
    if (exponent_above(largest_value<T>(problem, v, scratch)) > room) return true;
  }
  return false;
}

// The largest output of a split that can be merged with those of all others as it is.
template <class T>
inline constexpr T kLargestMerged = static_cast<T>(sizeof(T) == 8 ? 0x1p996 : 0x1p100);

template <class T>
TILEWISE_INLINE Largest<T> largest_output(const T* out, std::int64_t size) {
  Largest<T> largest;
  for (std::int64_t c = 0; c < size; c += Vec<T>::kLanes) largest.add(Vec<T>::load(out + c));
  return largest;
}

// Gives a unit to the rows of a kv head whose outputs have overflowed, or might when splits are
// merged. Returns whether some of them have overflowed, and must be computed again. NaN and
// infinity that come from scores or values are no overflow.
template <class T>
bool lower_prob_units(const DecodeRange& range, std::int64_t kv, const DecodeScratch<T>& scratch) {
  const std::int64_t size = padded<T>(range.context.problem->value_dim).size();
  const std::int64_t rows = range.rows_of_kv_head();
  bool measured = false;
  bool may_overflow = false;
  bool overflowed = false;
  for (std::int64_t r = kv * rows; r < (kv + 1) * rows; ++r) {
    T* const out = scratch.out + r * size;
    const Largest<T> largest = largest_output(out, size);
    if (__builtin_expect(!largest.exceeds(kLargestMerged<T>), 1)) continue;
    if (scratch.prob_unit[r] != T(1) || !math::is_finite(scratch.sum[r])) continue;
    if (math::is_finite(largest.value())) {
      for (std::int64_t c = 0; c < size; ++c) out[c] *= least_prob_unit<T>(range);
    } else {
      if (!measured) may_overflow = values_may_overflow(range, kv, scratch);
      measured = true;
      if (!may_overflow) continue;
      overflowed = true;
    }
    scratch.prob_unit[r] = least_prob_unit<T>(range);
    *scratch.has_prob_units = true;
  }
  return overflowed;
}

template <class T>
bool lower_prob_units(const DecodeRange& range, const DecodeScratch<T>& scratch) {
  bool overflowed = false;
  for (std::int64_t kv = 0; kv < range.heads.kv_heads; ++kv)
    overflowed = lower_prob_units(range, kv, scratch) || overflowed;
  return overflowed;
}

inline void count_fallback(const Problem& problem) {
  if (!problem.phi_fallbacks.present()) return;
  __atomic_fetch_add(static_cast<std::int64_t*>(problem.phi_fallbacks.data), 1, __ATOMIC_RELAXED);
}

// Computes the states of a split. Returns the number of keys that were read.
template <class T>
std::int64_t decode_split(const RunContext& run, const DecodeRange& range,
                          const DecodeScratch<T>& scratch) {
  const Problem& problem = *range.context.problem;
  const bool unified = problem.phi.present();
  for (std::int64_t r = 0; r < range.rows(); ++r) {
    scratch.at_phi[r] = unified ? 1 : 0;
    scratch.prob_unit[r] = T(1);
  }
  *scratch.has_prob_units = false;
  std::int64_t visited = decode_split_once(run, range, scratch);
  bool falls_back = unified && !rows_are_safe(range, scratch);
  if (falls_back) count_fallback(problem);
  while (lower_prob_units(range, scratch) || falls_back) {
    falls_back = false;
    visited += decode_split_once(run, range, scratch);
  }
  for (std::int64_t r = 0; unified && r < range.rows(); ++r) {
    if (!sees_split(range, r)) scratch.max[r] = math::empty_state<T>().max;
  }
  return visited;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
