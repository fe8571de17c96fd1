// dQ is summed up in memory. Every block of keys adds its part to the rows that see it. The blocks
// add in the order of the keys, whichever worker computes them: at each tile of queries a block
// waits until the block before it has added its part. Therefore dQ has the same bits for any number
// of threads.
#pragma once

#include <sched.h>

#include "cpu/backward/recompute.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// The sums of dQ, in the arithmetic type: contiguous, in the layout of q, with rows padded to whole
// registers.
template <class T>
struct QueryGradient {
  T* sums;  // (B, H, Sq, padded D) or (H, T, padded D); nullptr if dQ is not wanted
  std::int64_t batch;
  std::int64_t head;
  std::int64_t row;         // the padded D
  GradientUnits<T>* units;  // (B, kv heads)
  std::int64_t* progress;   // one number per block of keys: the number of tiles of queries
                            // that this block and all blocks before it have added to

  TILEWISE_INLINE T* at(const HeadContext& context, std::int64_t first) const {
    return sums + context.sequence.batch * batch + context.head * head +
           (context.sequence.q_start + first) * row;
  }
  TILEWISE_INLINE const GradientUnits<T>& units_of(const HeadContext& context) const {
    return units[context.sequence.batch * context.problem->kv_heads + context.kv_head()];
  }
};

template <class T>
TILEWISE_INLINE std::int64_t padded_head_dim(const Problem& problem) {
  // AMX adds blocks of 32 columns.
  constexpr std::int64_t kLanes = TILEWISE_HAS_AMX ? 32 : Vec<T>::kLanes;
  return math::ceil_div(problem.head_dim, kLanes) * kLanes;
}

// Orders the blocks that add to the same rows. Workers take blocks in this order and finish each
// block that they have taken, so that the first unfinished block never waits: there is no deadlock,
// however few threads there are.
struct OrderBarrier {
  std::int64_t* own;
  const std::int64_t* before;  // of the block before; nullptr for the first

  // Returns when every block before this one has arrived at tile `position` (counted over the heads
  // of the group).
  TILEWISE_INLINE void wait(std::int64_t position) const {
    if (before == nullptr) return;
    for (int spins = 0; __atomic_load_n(before, __ATOMIC_ACQUIRE) <= position; ++spins) {
      if (spins > kSpins) sched_yield();
    }
  }
  TILEWISE_INLINE void arrive(std::int64_t position) const {
    __atomic_store_n(own, position + 1, __ATOMIC_RELEASE);
  }

  static constexpr int kSpins = 200;
};

// K rows of a block, padded to whole registers, as the right operand of dQ += dS K. Rows that are
// not finite are zeros here, and are added one by one to the queries that see them.
template <class E>
struct KeyRows {
  E* rows;                   // (operand_count(keys), padded D)
  std::uint8_t* non_finite;  // (keys): 1 where a row is not finite
  bool far;                  // whether the sequence has kFarRows rows or more
  bool all_finite;
};

template <class T>
void load_key_rows(const RowBlock& block, std::int64_t padded, T unit, KeyRows<T>& result) {
  static_assert(Operand<T>::kNumbers == 1, "pairs have a form of their own");
  result.all_finite = true;
  with_storage(block.view->dtype, [&](auto storage) {
    using S = decltype(storage);
    const S* const base = static_cast<const S*>(block.view->data) +
                          block.view->offset(block.batch, block.head, block.first);
    for (std::int64_t r = 0; r < block.count; ++r) {
      const S* const from = base + r * block.view->row;
      if (result.far) prefetch_later_row(from, block.view->row, block.width);
      T* const to = result.rows + r * padded;
      std::int64_t c = 0;
      for (; c + Vec<T>::kLanes <= block.width; c += Vec<T>::kLanes)
        multiply_exactly(load_converted<T>(from + c), unit).store(to + c);
      for (; c < padded; ++c) to[c] = c < block.width ? math::load<T>(from[c]) * unit : T(0);
      result.non_finite[r] = row_is_finite<T>(to, block.width) ? 0 : 1;
      if (result.non_finite[r] == 0) continue;
      result.all_finite = false;
      for (c = 0; c < block.width; ++c) to[c] = T(0);
    }
  });
}

#if TILEWISE_HAS_AVX512_BF16
// load_key_rows() for pairs of bf16: words[key / 2][c] = column c of two keys, with zeros after the
// ends.
template <IsBf16Pair E>
void load_key_rows(const RowBlock& block, std::int64_t padded, float, KeyRows<E>& result) {
  E* const words = result.rows;
  result.all_finite = true;
  const auto row = [&](std::int64_t r) { return rows_16bit(block) + r * block.view->row; };
  for (std::int64_t r = 0; r < block.count; r += 2) {
    if (result.far) {
      prefetch_later_row(row(r), block.view->row, block.width);
      prefetch_later_row(row(r + 1), block.view->row, block.width);
    }
    const bool even = is_finite_16bit(row(r), block.width);
    const bool odd = r + 1 < block.count && is_finite_16bit(row(r + 1), block.width);
    result.non_finite[r] = even ? 0 : 1;
    if (r + 1 < block.count) result.non_finite[r + 1] = odd ? 0 : 1;
    if (!even || (!odd && r + 1 < block.count)) result.all_finite = false;
    for (std::int64_t c = 0; c < padded; c += 32) {
      const InterleavedRows pairs =
          interleave(even ? load_16bit(row(r), c, block.width) : _mm512_setzero_si512(),
                     odd ? load_16bit(row(r + 1), c, block.width) : _mm512_setzero_si512());
      _mm512_storeu_si512(words + r / 2 * padded + c, pairs.low);
      if (c + 16 < padded) _mm512_storeu_si512(words + r / 2 * padded + c + 16, pairs.high);
    }
  }
}
#endif

// dq[row] += dS[row][lane] * K[lane], for those keys of a panel that are not finite and that the
// row sees. A NaN in a key makes the scores and so dS of these rows NaN, which has reached dq by
// way of the zeros. Only a finite dS is left, as that of an infinite score under a softcap.
template <class T, int kWidth>
void add_non_finite_keys(const HeadContext& context, const TileBounds& bounds, const T* gradients,
                         const std::uint8_t* non_finite, const QueryGradient<T>& gradient,
                         const TileSight<T>& sight) {
  const View& k = context.problem->k;
  T* const dq = gradient.at(context, bounds.t0);
  const T unit = gradient.units_of(context).k_rows;
  for (std::int64_t lane = 0; lane < bounds.lane_count; ++lane) {
    if (non_finite[lane] == 0) continue;
    with_storage(k.dtype, [&](auto storage) {
      using S = decltype(storage);
      const S* const row =
          static_cast<const S*>(k.data) + k.offset(context.sequence.batch, context.kv_head(),
                                                   context.sequence.k_start + bounds.lane0 + lane);
      for (std::int64_t t = 0; t < bounds.t_count; ++t) {
        const T dscore = gradients[t * kWidth + lane];
        const bool sees = sight.seen_whole || sight.seen[t * kWidth + lane] != 0;
        if (!sees || !math::is_finite(dscore)) continue;
        for (std::int64_t c = 0; c < context.problem->head_dim; ++c)
          dq[t * gradient.row + c] += dscore * (math::load<T>(row[c]) * unit);
      }
    });
  }
}

// Adds the part of a panel to dQ: dQ += dS K for the rows of the tile.
template <class T, int kMost, int kColumns>
void add_query_gradient(const HeadContext& context, const TileBounds& bounds,
                        const ActiveRegisters<kColumns>& active, const T* key_rows,
                        const GradientScratch<T>& scratch, const QueryGradient<T>& gradient) {
  constexpr std::int64_t kLanes = Vec<T>::kLanes;
  constexpr int kWidth = kMost * Vec<T>::kLanes;
  T* const dq = gradient.at(context, bounds.t0);
  for_each_run(active, bounds.t_count, [&](std::int64_t t, std::int64_t rows, int from, int to) {
    const std::int64_t first = from * kLanes;
    gemm_wide<T>(
        {scratch.tile.gradients + t * kWidth + first, kWidth}, rows,
        {key_rows + first * gradient.row, gradient.row, dq + t * gradient.row, gradient.row},
        gradient.row / kLanes, math::min(to * kLanes, bounds.lane_count) - first);
  });
}

// Stores a row of dQ, multiplied by the factor. With kAdds it is added to what the tensor holds.
template <bool kAdds, class T, class S>
TILEWISE_INLINE void store_gradient_row(const T* from, std::int64_t width,
                                        const GradientFactor<T>& factor, S* to) {
  std::int64_t c = 0;
  for (; c + Vec<T>::kLanes <= width; c += Vec<T>::kLanes) {
    Vec<T> x = Vec<T>::load(from + c) * Vec<T>(factor.first) * Vec<T>(factor.second);
    if constexpr (kAdds) x = load_converted<T>(to + c) + x;
    store_converted(x, to + c);
  }
  for (; c < width; ++c) {
    T x = from[c] * factor.first * factor.second;
    if constexpr (kAdds) x = math::load<T>(to[c]) + x;
    math::store(x, to + c);
  }
}

// Stores rows [first, first + count) of a head, multiplied by the scale, in the type of dQ, or adds
// them to dQ with `accumulate`.
template <class T>
void store_query_gradient(const HeadContext& context, std::int64_t first, std::int64_t count,
                          const QueryGradient<T>& gradient) {
  const Problem& problem = *context.problem;
  const T* const sums = gradient.at(context, first);
  const GradientUnits<T>& units = gradient.units_of(context);
  const GradientFactor<T> factor(problem.scale, units, units.k_rows);
  const std::int64_t start =
      problem.dq.offset(context.sequence.batch, context.head, context.sequence.q_start + first);
  with_storage(problem.dq.dtype, [&](auto storage) {
    using S = decltype(storage);
    for (std::int64_t i = 0; i < count; ++i) {
      S* const to = static_cast<S*>(problem.dq.data) + start + i * problem.dq.row;
      const T* const from = sums + i * gradient.row;
      problem.accumulate ? store_gradient_row<true>(from, problem.head_dim, factor, to)
                         : store_gradient_row<false>(from, problem.head_dim, factor, to);
    }
  });
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
