// The end of a row in the forward pass: normalisation, the sink, and storing of O and LSE.
#pragma once

#include "cpu/common/dropout.h"
#include "cpu/forward/block.h"
#include "math/softmax_state.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Normalises the rows, adds the sink to their denominators, and stores O and LSE.
template <class E, int kWidth>
void store_outputs(const QueryBlock& block, const ForwardScratch<E>& scratch) {
  using T = SumOf<E>;
  const HeadContext& context = block.context;
  const Problem& problem = *context.problem;
  const T sink = problem.sink.present()
                     ? static_cast<T>(static_cast<const float*>(
                           problem.sink.data)[problem.sink.offset(0, context.head, 0)])
                     : -math::Limits<T>::kInfinity;
  for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel) {
    const std::int64_t row = context.sequence.q_start + block.first + panel * kWidth;
    const std::int64_t lanes = math::min(kWidth, block.rows - panel * kWidth);
    T scale[kWidth] = {};
    const T unit = scratch.out_unit[panel];
    const T per_unit = unit == T(0) ? T(1) : T(1) / unit;
    const T natural = ScoreScaling<T>(problem).factor;
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      const std::int64_t at = panel * kWidth + lane;
      const math::Finalised<T> finalised =
          math::finalise(math::SoftmaxState<T>{scratch.max[at] * natural, scratch.sum[at]}, sink);
      scale[lane] = finalised.scale * per_unit;
      if (problem.lse.present()) {
        store_statistic(problem.lse, context.sequence.batch, context.head, row + lane,
                        finalised.lse);
      }
    }
    unpack_panel<T, kWidth>(
        {&problem.out, context.sequence.batch, context.head, row, lanes, problem.value_dim}, scale,
        scratch.out_panels + panel * scratch.out_panel);
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
