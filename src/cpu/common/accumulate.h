// The product that sums over keys (P V) or over queries (dO^T P, Q^T dS), with the mask's edges,
// and with rows that are not finite.
#pragma once

#include "cpu/common/non_finite.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Whether a tile holds rows that are not finite, and whether its lanes see all of its rows.
struct TileSight {
  const std::uint8_t* seen;  // (t_count, kWidth); only if seen_whole is false
  bool seen_whole;
};

// out[c][lane] = out * factor + sum over t of rows[skipped + t][c] * probs[t][lane].
//
// probs: from as_operands(), zeros outside of `active`; skipped: a multiple of an operand's numbers
template <class E, int kColumns, int kWidth>
void accumulate(const ContainedColumns<E>& columns, std::int64_t skipped, std::int64_t t_count,
                const ActiveRegisters<kColumns>& active, const E* probs,
                const Vec<SumOf<E>>* factor, const TileSight& sight, SumOf<E>* out,
                Prefetcher* prefetcher = nullptr) {
  const bool contained = !columns.all_finite && !sight.seen_whole;
  const PackedColumns<E>& rows = contained ? columns.zeroed : columns.whole;
  gemm_packed_masked<E, kColumns, kWidth>(rows.data + operand_count<E>(skipped) * kGemmRows,
                                          rows.rows.width, probs, t_count, active, out, factor,
                                          prefetcher);
  if (contained)
    add_non_finite_rows<E, kColumns, kWidth>(columns, skipped, active, probs, sight.seen, out);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
