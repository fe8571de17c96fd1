// NaN and infinity in the inputs of the AMX kernels.
#pragma once

#include "cpu/amx/packing.h"
#include "cpu/amx/shape.h"
#include "cpu/common/score_mod.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// Sets non_finite[r] to 1 where row r is not finite, and to 0 elsewhere. Returns true if there is
// such a row.
template <int kTerms = 1>
TILEWISE_INLINE bool flag_non_finite_rows(const RowBlock& rows, std::uint8_t* non_finite) {
  constexpr int kExponent = kTerms == 2 ? 0x7C00 : 0x7F80;
  const RowAddresses<std::uint16_t> address(rows);
  bool any = false;
  for (std::int64_t r = 0; r < rows.count; ++r) {
    prefetch_later_row(rows, address, r);
    non_finite[r] = is_finite_16bit<kExponent>(address[r], rows.width) ? 0 : 1;
    any = any || non_finite[r] != 0;
  }
  return any;
}

// seen[t][lane] = 1 where the score of a block is not masked.
TILEWISE_INLINE void amx_record_seen(const float* scores, std::uint8_t* seen) {
  for (std::int64_t at = 0; at < kBlockKeys * kAmxWidth; ++at)
    seen[at] = scores[at] == -math::Limits<float>::kInfinity ? 0 : 1;
}

// With fp16, AMX would multiply infinity by a low term of zero, which gives NaN. This function
// computes the scores of keys and queries that are not finite again, as fp32 has them: -inf is
// masked, and not NaN.
//
// scores: (kAmxWidth, kAmxWidth)
template <Lanes kLanesAre>
__attribute__((noinline)) void recompute_non_finite_scores(const HeadContext& context,
                                                           const TileBounds& block, float* scores) {
  const Problem& problem = *context.problem;
  const std::int64_t batch = context.sequence.batch;
  const math::KeyRange queries = rows_of(kLanesAre, block);
  const math::KeyRange keys = keys_of(kLanesAre, block);
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
                      problem.head_dim,
                      pages_of(problem)};
  std::uint8_t non_finite_q[kAmxWidth];
  std::uint8_t non_finite_k[kAmxWidth];
  const bool any_q = flag_non_finite_rows<2>(q, non_finite_q);
  const bool any_k = flag_non_finite_rows<2>(k, non_finite_k);
  if (!any_q && !any_k) return;
  constexpr std::int64_t kOfKey = kLanesAre == Lanes::kKeys ? 1 : kAmxWidth;
  constexpr std::int64_t kOfQuery = kLanesAre == Lanes::kKeys ? kAmxWidth : 1;
  const RowAddresses<std::uint16_t> q_address(q);
  const RowAddresses<std::uint16_t> k_address(k);
  for (std::int64_t j = 0; j < k.count; ++j) {
    for (std::int64_t i = 0; i < q.count; ++i) {
      if (non_finite_k[j] == 0 && non_finite_q[i] == 0) continue;
      const std::uint16_t* const key = k_address[j];
      const std::uint16_t* const query = q_address[i];
      float sum = 0;
      for (std::int64_t c = 0; c < problem.head_dim; ++c)
        sum += math::to_float(math::Float16{key[c]}) * math::to_float(math::Float16{query[c]});
      scores[j * kOfKey + i * kOfQuery] = sum * ScoreScaling<float>(problem).sign;
    }
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
