// Scores in two terms of keys and queries that are not finite.
#pragma once

#include "cpu/pair_softmax.h"

#if TILEWISE_HAS_TILES

namespace tilewise::cpu::TILEWISE_TARGET {

// fp16: the unit multiplies infinity by the zero of a low term. Scores of keys and queries that are
// not finite are computed here, as fp32 has them: -inf is masked, and no NaN.
// scores: (kPairWidth, kPairWidth)
template <Lanes kLanesAre>
__attribute__((noinline)) void repeat_odd_scores(const HeadContext& context, const Frame& block,
                                                 float* scores) {
  const Problem& problem = *context.problem;
  const std::int64_t batch = context.sequence.batch;
  const math::KeyRange queries = frame_rows(kLanesAre, block);
  const math::KeyRange keys = frame_keys(kLanesAre, block);
  const RowBlock q = {&problem.q,
                      batch,
                      context.head,
                      context.sequence.q_start + queries.begin,
                      queries.end - queries.begin,
                      problem.head_dim};
  const RowBlock k = {&problem.k,
                      batch,
                      context.kv_head(),
                      context.sequence.k_start + keys.begin,
                      keys.end - keys.begin,
                      problem.head_dim};
  std::uint8_t odd_q[kPairWidth];
  std::uint8_t odd_k[kPairWidth];
  const bool any_q = mark_odd_rows<2>(q, odd_q);
  const bool any_k = mark_odd_rows<2>(k, odd_k);
  if (!any_q && !any_k) return;
  constexpr std::int64_t kOfKey = kLanesAre == Lanes::kKeys ? 1 : kPairWidth;
  constexpr std::int64_t kOfQuery = kLanesAre == Lanes::kKeys ? kPairWidth : 1;
  for (std::int64_t j = 0; j < k.count; ++j) {
    for (std::int64_t i = 0; i < q.count; ++i) {
      if (odd_k[j] == 0 && odd_q[i] == 0) continue;
      float sum = 0;
      for (std::int64_t c = 0; c < problem.head_dim; ++c) {
        sum += math::to_float(math::Float16{half_rows(k)[j * problem.k.row + c]}) *
               math::to_float(math::Float16{half_rows(q)[i * problem.q.row + c]});
      }
      scores[j * kOfKey + i * kOfQuery] = sum * ScoreUnits<float>(problem).packed;
    }
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_TILES
