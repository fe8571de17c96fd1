// The product that sums over keys (P V) or over queries (dO^T P, Q^T dS), with the mask's edges,
// and with rows that are not finite.
#pragma once

#include "cpu/common/non_finite.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// out[c][lane] = out * factor + sum over t of rows[skipped + t][c] * probs[t][lane].
//
// probs: from as_operands(), zeros outside of `active`; skipped: a multiple of an operand's numbers
template <class E, int kColumns, int kWidth>
void accumulate(const PackedColumns<E>& rows, std::int64_t skipped, std::int64_t t_count,
                const ActiveRegisters<kColumns>& active, const E* probs,
                const Vec<SumOf<E>>* factor, const TileSight<SumOf<E>>& sight, SumOf<E>* out,
                Prefetcher* prefetcher = nullptr) {
  const E* const data = rows.data + operand_count<E>(skipped) * kGemmRows;
  if (sight.seen_whole || rows.all_finite()) {
    return gemm_packed_masked<E, kColumns, kWidth>(data, rows.rows.width, probs, t_count, active,
                                                   out, factor, prefetcher);
  }
  for (std::int64_t m = 0; prefetcher != nullptr && m < rows.rows.width; m += kGemmRows)
    prefetcher->step();
  for (int n = 0; n < kColumns; n += kSeenColumns) {
    const int last = math::min(n + kSeenColumns, kColumns) - 1;
    const math::KeyRange of_registers = {operand_count<E>(active.begin[n]),
                                         operand_count<E>(active.end[last])};
    const int lane = n * Vec<E>::kLanes;
    with_columns<E, kSeenColumns>((last + 1 - n) * Vec<E>::kLanes, [&](auto columns) {
      gemm_packed_seen<E, decltype(columns)::kCount, kWidth>(
          data, rows.rows.width, probs + lane, t_count, of_registers, sight.seen + lane, out + lane,
          factor + n);
    });
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
