// Tiles that the edge of a mask cuts: a register of lanes takes part only in the rows of the tile
// that one of its lanes sees. What is left out is masked, and selected out as ever: no bit depends
// on it.
#pragma once

#include "cpu/score_step.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Register n takes part in the rows [begin[n], end[n]) of a tile: multiples of kProductRows, or the
// tile's end. Both rise with n, and every register takes part in [begin[last], end[0]).
template <int kColumns>
struct Steps {
  std::int64_t begin[kColumns];
  std::int64_t end[kColumns];
  bool level;  // all take part in all rows
};

template <int kColumns>
TILEWISE_INLINE Steps<kColumns> level_steps(std::int64_t t_count) {
  Steps<kColumns> steps;
  for (int n = 0; n < kColumns; ++n) {
    steps.begin[n] = 0;
    steps.end[n] = t_count;
  }
  steps.level = true;
  return steps;
}

// Level, too, where several bands meet, or a band is so narrow that no row is seen from every
// register.
template <class T, Lanes kLanesAre, int kColumns>
Steps<kColumns> find_steps(const HeadContext& context, const Frame& frame, TileClass tile_class) {
  constexpr std::int64_t kLanes = Vec<T>::kLanes;
  const Steps<kColumns> level = level_steps<kColumns>(frame.t_count);
  if (kColumns == 1 || tile_class == TileClass::kFull || context.band_count != 1) return level;
  Steps<kColumns> steps = level;
  steps.level = false;
  for (int n = 0; n < kColumns; ++n) {
    const std::int64_t first = frame.lane0 + n * kLanes;
    const std::int64_t end = math::min(first + kLanes, frame.lane0 + frame.lane_count);
    const math::KeyRange seen = kLanesAre == Lanes::kQueries
                                    ? math::tile_keys(context.bands[0], first, end)
                                    : math::tile_rows(context.bands[0], first, end);
    steps.begin[n] =
        math::clamp(seen.begin - frame.t0, 0, frame.t_count) / kProductRows * kProductRows;
    steps.end[n] = math::min(whole_product_rows(math::clamp(seen.end - frame.t0, 0, frame.t_count)),
                             frame.t_count);
    if (n > 0 && (steps.begin[n] < steps.begin[n - 1] || steps.end[n] < steps.end[n - 1]))
      return level;
  }
  return steps.begin[kColumns - 1] <= steps.end[0] ? steps : level;
}

// Calls f(t, rows, from, to) for runs of rows that the registers [from, to) take part in.
template <int kColumns, class Function>
TILEWISE_INLINE void for_each_run(const Steps<kColumns>& steps, std::int64_t t_count, Function f) {
  std::int64_t next = 0;
  for (std::int64_t t = 0; t < t_count; t = next) {
    int from = 0;
    int to = 0;
    next = t_count;
    for (int n = 0; n < kColumns; ++n) {
      if (steps.end[n] <= t) from = n + 1;
      if (steps.begin[n] <= t) to = n + 1;
      if (steps.begin[n] > t) next = math::min(next, steps.begin[n]);
      if (steps.end[n] > t) next = math::min(next, steps.end[n]);
    }
    f(t, next - t, from, to);
  }
}

// product() of the registers that take part; zeros in the others.
template <class E, int kColumns, std::int64_t kWidth>
void stepped_product(Rows<E> a, std::int64_t m_count, const E* b, std::int64_t depth,
                     const Steps<kColumns>& steps, SumOf<E>* c, Ahead* ahead) {
  using T = SumOf<E>;
  constexpr int kLanes = Vec<T>::kLanes;
  if (steps.level) return product<E, kColumns, kWidth>(a, m_count, b, depth, c, ahead);
  for_each_run(steps, m_count, [&](std::int64_t m, std::int64_t rows, int from, int to) {
    T* const run = c + m * kWidth;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (int n = 0; n < kColumns; ++n) {
        if (n < from || n >= to) Vec<T>(T(0)).store(run + r * kWidth + n * kLanes);
      }
    }
    if (from >= to) return;
    with_columns<T, kColumns>((to - from) * kLanes, [&](auto columns) {
      product<E, decltype(columns)::kCount, kWidth>({a.data + m * a.stride, a.stride}, rows,
                                                    b + from * kLanes, depth, run + from * kLanes,
                                                    ahead);
    });
  });
}

// Rows that the registers [0, n) take part in, n from 1 on.
template <class E, int kColumns, int n = 1>
TILEWISE_INLINE void add_rising(Rows<E> a, Panels<E> panels, const Steps<kColumns>& steps,
                                Vec<SumOf<E>> (&sums)[kProductRows][kColumns]) {
  if constexpr (n < kColumns) {
    add_products<E, kProductRows, kColumns, Left::kPacked, 0, n>(
        a, panels, operands<E>(steps.begin[n - 1]), operands<E>(steps.begin[n]), sums);
    add_rising<E, kColumns, n + 1>(a, panels, steps, sums);
  }
}
// Rows that the registers [n, kColumns) take part in, n from 1 on.
template <class E, int kColumns, int n = 1>
TILEWISE_INLINE void add_falling(Rows<E> a, Panels<E> panels, const Steps<kColumns>& steps,
                                 Vec<SumOf<E>> (&sums)[kProductRows][kColumns]) {
  if constexpr (n < kColumns) {
    add_products<E, kProductRows, kColumns, Left::kPacked, n, kColumns>(
        a, panels, operands<E>(steps.end[n - 1]), operands<E>(steps.end[n]), sums);
    add_falling<E, kColumns, n + 1>(a, panels, steps, sums);
  }
}

// packed_product(), rows of b as in `steps`.
template <class E, int kColumns, std::int64_t kWidth>
void stepped_packed_product(const E* a, std::int64_t m_count, const E* b, std::int64_t t_count,
                            const Steps<kColumns>& steps, SumOf<E>* c, const Vec<SumOf<E>>* factor,
                            Ahead* ahead) {
  if (steps.level) {
    return packed_product<E, kColumns, kWidth>(a, m_count, b, operands<E>(t_count), c, factor,
                                               ahead);
  }
  for (std::int64_t m = 0; m < m_count; m += kProductRows) {
    if (ahead != nullptr) ahead->ask_share();
    const Rows<E> columns = {a + m / kProductRows * kPackedBlock<E>, 0};
    const Panels<E> panels = {b, kWidth, c + m * kWidth, kWidth};
    Vec<SumOf<E>> sums[kProductRows][kColumns];
    clear_sums(sums);
    add_rising<E, kColumns>(columns, panels, steps, sums);
    add_products<E, kProductRows, kColumns, Left::kPacked>(
        columns, panels, operands<E>(steps.begin[kColumns - 1]), operands<E>(steps.end[0]), sums);
    add_falling<E, kColumns>(columns, panels, steps, sums);
    store_sums(panels, factor, sums);
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
