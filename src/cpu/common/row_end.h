// The end of a row, common to blocks of queries (forward/finalise.h) and decoding
// (decode/merge.h): the sink, the earlier result with `accumulate`, and LSE.
#pragma once

#include "cpu/common/score_mod.h"
#include "cpu/simd/conversion.h"
#include "math/softmax_state.h"

namespace tilewise::cpu::TILEWISE_TARGET {

template <class T>
TILEWISE_INLINE T sink_of(const Problem& problem, std::int64_t head) {
  if (!problem.sink.present()) return -math::Limits<T>::kInfinity;
  return static_cast<T>(
      static_cast<const float*>(problem.sink.data)[problem.sink.offset(0, head, 0)]);
}

// Ends the row of a state whose maximum is in the representation of ScoreScaling, and stores its
// LSE. Returns what its output is multiplied by, and what the output in memory is multiplied by
// and whether it is read, which it is with `accumulate` alone.
//
// row: of the tensor
template <class T>
TILEWISE_INLINE math::Continued<T> end_row(const HeadContext& context, std::int64_t head,
                                           std::int64_t row, math::SoftmaxState<T> state, T sink) {
  const Problem& problem = *context.problem;
  const std::int64_t b = context.sequence.batch;
  state.max *= ScoreScaling<T>(problem).factor;
  math::Continued<T> end = {};
  if (problem.accumulate) {
    end = math::finalise_into(load_statistic<T>(problem.lse, b, head, row), state, sink);
  } else {
    const math::Finalised<T> finalised = math::finalise(state, sink);
    end.scale = finalised.scale;
    end.lse = finalised.lse;
  }
  if (problem.lse.present()) store_statistic(problem.lse, b, head, row, end.lse);
  return end;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
