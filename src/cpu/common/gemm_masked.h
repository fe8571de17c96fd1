// GEMM for tiles that an edge of the mask cuts: a register of lanes is computed only in those rows
// of the tile that at least one of its lanes sees. The skipped scores are masked, and the mask
// selects them out as always, so no bit depends on the skipping.
#pragma once

#include "cpu/common/mask.h"
#include "cpu/simd/gemm.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Register n is computed in the rows [begin[n], end[n]) of a tile, which are multiples of
// kGemmRows, or the end of the tile. Both are ascending in n, and every register is computed in
// [begin[last], end[0]).
template <int kColumns>
struct ActiveRegisters {
  std::int64_t begin[kColumns];
  std::int64_t end[kColumns];
  bool all;  // all registers are computed in all rows
};

template <int kColumns>
TILEWISE_INLINE ActiveRegisters<kColumns> all_active(std::int64_t t_count) {
  ActiveRegisters<kColumns> active;
  for (int n = 0; n < kColumns; ++n) {
    active.begin[n] = 0;
    active.end[n] = t_count;
  }
  active.all = true;
  return active;
}

// All registers are active, too, where several bands meet, or where a band is so narrow that no row
// is seen from every register.
template <class T, Lanes kLanesAre, int kColumns>
ActiveRegisters<kColumns> find_active(const HeadContext& context, const TileBounds& bounds,
                                      TileClass tile_class) {
  constexpr std::int64_t kLanes = Vec<T>::kLanes;
  const ActiveRegisters<kColumns> all = all_active<kColumns>(bounds.t_count);
  if (kColumns == 1 || tile_class == TileClass::kFull || context.band_count != 1) return all;
  ActiveRegisters<kColumns> active = all;
  active.all = false;
  for (int n = 0; n < kColumns; ++n) {
    const std::int64_t first = bounds.lane0 + n * kLanes;
    const std::int64_t end = math::min(first + kLanes, bounds.lane0 + bounds.lane_count);
    const math::KeyRange seen = kLanesAre == Lanes::kQueries
                                    ? math::tile_keys(context.bands[0], first, end)
                                    : math::tile_rows(context.bands[0], first, end);
    active.begin[n] =
        math::clamp(seen.begin - bounds.t0, 0, bounds.t_count) / kGemmRows * kGemmRows;
    active.end[n] =
        math::min(math::round_up(math::clamp(seen.end - bounds.t0, 0, bounds.t_count), kGemmRows),
                  bounds.t_count);
    if (n > 0 && (active.begin[n] < active.begin[n - 1] || active.end[n] < active.end[n - 1]))
      return all;
  }
  return active.begin[kColumns - 1] <= active.end[0] ? active : all;
}

// Calls f(t, rows, from, to) for every run of rows in which the registers [from, to) are active.
template <int kColumns, class Function>
TILEWISE_INLINE void for_each_run(const ActiveRegisters<kColumns>& active, std::int64_t t_count,
                                  Function f) {
  std::int64_t next = 0;
  for (std::int64_t t = 0; t < t_count; t = next) {
    int from = 0;
    int to = 0;
    next = t_count;
    for (int n = 0; n < kColumns; ++n) {
      if (active.end[n] <= t) from = n + 1;
      if (active.begin[n] <= t) to = n + 1;
      if (active.begin[n] > t) next = math::min(next, active.begin[n]);
      if (active.end[n] > t) next = math::min(next, active.end[n]);
    }
    f(t, next - t, from, to);
  }
}

// gemm() of the active registers; the others become zeros.
template <class E, int kColumns, std::int64_t kWidth>
void gemm_masked(Rows<E> a, std::int64_t m_count, const E* b, std::int64_t depth,
                 const ActiveRegisters<kColumns>& active, SumOf<E>* c, Prefetcher* prefetcher) {
  using T = SumOf<E>;
  constexpr int kLanes = Vec<T>::kLanes;
  if (active.all) return gemm<E, kColumns, kWidth>(a, m_count, b, depth, c, prefetcher);
  for_each_run(active, m_count, [&](std::int64_t m, std::int64_t rows, int from, int to) {
    T* const run = c + m * kWidth;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (int n = 0; n < kColumns; ++n) {
        if (n < from || n >= to) Vec<T>(T(0)).store(run + r * kWidth + n * kLanes);
      }
    }
    if (from >= to) return;
    with_columns<T, kColumns>((to - from) * kLanes, [&](auto columns) {
      gemm<E, decltype(columns)::kCount, kWidth>({a.data + m * a.stride, a.stride}, rows,
                                                 b + from * kLanes, depth, run + from * kLanes,
                                                 prefetcher);
    });
  });
}

// Adds the rows in which the registers [0, n) are active, for n from 1 on.
template <class E, int kColumns, int n = 1>
TILEWISE_INLINE void add_rising(Rows<E> a, Panels<E> panels,
                                const ActiveRegisters<kColumns>& active,
                                Vec<SumOf<E>> (&sums)[kGemmRows][kColumns]) {
  if constexpr (n < kColumns) {
    add_products<E, kGemmRows, kColumns, LeftOperand::kPacked, 0, n>(
        a, panels, operand_count<E>(active.begin[n - 1]), operand_count<E>(active.begin[n]), sums);
    add_rising<E, kColumns, n + 1>(a, panels, active, sums);
  }
}
// Adds the rows in which the registers [n, kColumns) are active, for n from 1 on.
template <class E, int kColumns, int n = 1>
TILEWISE_INLINE void add_falling(Rows<E> a, Panels<E> panels,
                                 const ActiveRegisters<kColumns>& active,
                                 Vec<SumOf<E>> (&sums)[kGemmRows][kColumns]) {
  if constexpr (n < kColumns) {
    add_products<E, kGemmRows, kColumns, LeftOperand::kPacked, n, kColumns>(
        a, panels, operand_count<E>(active.end[n - 1]), operand_count<E>(active.end[n]), sums);
    add_falling<E, kColumns, n + 1>(a, panels, active, sums);
  }
}

// gemm_packed() of the active registers.
template <class E, int kColumns, std::int64_t kWidth>
void gemm_packed_masked(const E* a, std::int64_t m_count, const E* b, std::int64_t t_count,
                        const ActiveRegisters<kColumns>& active, SumOf<E>* c,
                        const Vec<SumOf<E>>* factor, Prefetcher* prefetcher) {
  if (active.all) {
    return gemm_packed<E, kColumns, kWidth>(a, m_count, b, operand_count<E>(t_count), c, factor,
                                            prefetcher);
  }
  for (std::int64_t m = 0; m < m_count; m += kGemmRows) {
    if (prefetcher != nullptr) prefetcher->step();
    const Rows<E> columns = {a + m / kGemmRows * kPackedBlock<E>, 0};
    const Panels<E> panels = {b, kWidth, c + m * kWidth, kWidth};
    Vec<SumOf<E>> sums[kGemmRows][kColumns];
    clear_sums(sums);
    add_rising<E, kColumns>(columns, panels, active, sums);
    add_products<E, kGemmRows, kColumns, LeftOperand::kPacked>(
        columns, panels, operand_count<E>(active.begin[kColumns - 1]),
        operand_count<E>(active.end[0]), sums);
    add_falling<E, kColumns>(columns, panels, active, sums);
    store_sums(panels, factor, sums);
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
