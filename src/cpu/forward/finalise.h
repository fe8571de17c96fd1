// The end of a block of rows in the forward pass: normalisation, the sink, the earlier result with
// `accumulate`, and storing of O and LSE.
#pragma once

#include "cpu/common/dropout.h"
#include "cpu/common/row_end.h"
#include "cpu/forward/block.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Normalises the rows, adds the sink to their denominators, merges them into the earlier result
// with `accumulate`, and stores O and LSE.
template <class E, int kWidth>
void store_outputs(const QueryBlock& block, const ForwardScratch<E>& scratch) {
  using T = SumOf<E>;
  const HeadContext& context = block.context;
  const Problem& problem = *context.problem;
  const T sink = sink_of<T>(problem, context.head);
  for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel) {
    const RowBlock rows = panel_rows(problem.out, block, panel, kWidth, problem.value_dim);
    T scale[kWidth] = {};
    T kept[kWidth] = {};
    bool reads[kWidth] = {};
    const T unit = scratch.out_unit[panel];
    const T per_unit = unit == T(0) ? T(1) : T(1) / unit;
    for (std::int64_t lane = 0; lane < rows.count; ++lane) {
      const std::int64_t at = panel * kWidth + lane;
      const math::Continued<T> end = end_row(context, context.head, rows.first + lane,
                                             {scratch.max[at], scratch.sum[at]}, sink);
      scale[lane] = end.scale * per_unit;
      kept[lane] = end.kept;
      reads[lane] = end.has_earlier;
    }
    const T* const out = scratch.out_panels + panel * scratch.out_panel;
    if (problem.accumulate) {
      unpack_panel_with<T, kWidth>(rows, scale, out, MergeNumbers<T>{kept, reads});
    } else {
      unpack_panel<T, kWidth>(rows, scale, out);
    }
  }
}

template <class E, int kWidth>
void apply_dropout_scale(const QueryBlock& block, const ForwardScratch<E>& scratch) {
  using T = SumOf<E>;
  const Problem& problem = *block.context.problem;
  if (problem.dropout_p == 0) return;
  const Vec<T> factor(dropout_scale<T>(problem));
  const std::int64_t count = math::ceil_div(block.rows, kWidth) * scratch.out_panel;
  for (std::int64_t i = 0; i < count; i += Vec<T>::kLanes) {
    T* const at = scratch.out_panels + i;
    (Vec<T>::load(at) * factor).store(at);
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
