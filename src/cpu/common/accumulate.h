// The product that sums over keys (P V) or over queries (dO^T P, Q^T dS), with the mask's edges and
// with the slow path for non-finite rows.
#pragma once

#include "cpu/common/gemm_masked.h"
#include "cpu/common/non_finite.h"
#include "cpu/simd/packing_bf16.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// out[c][lane] = out * factor + sum over t of rows[skipped + t][c] * probs[t][lane].
//
// On the slow path (rows.non_finite is set) rows that are not finite enter the product as zeros, so
// that the sums of all other rows have the bits that they have without them; afterwards each of
// these rows is added to the lanes that see it, and to no others.
//
// probs: from as_operands(), zeros outside of `active`; seen: (t_count, kWidth); skipped: a
// multiple of an operand's numbers
template <class E, int kColumns, int kWidth>
void accumulate(const PackedColumns<E>& rows, std::int64_t skipped, std::int64_t t_count,
                const ActiveRegisters<kColumns>& active, const E* probs,
                const Vec<SumOf<E>>* factor, const std::uint8_t* seen, SumOf<E>* out,
                Prefetcher* prefetcher = nullptr) {
  gemm_packed_masked<E, kColumns, kWidth>(rows.data + operand_count<E>(skipped) * kGemmRows,
                                          rows.rows.width, probs, t_count, active, out, factor,
                                          prefetcher);
  for (std::int64_t t = 0; rows.non_finite != nullptr && t < t_count; ++t) {
    if (rows.non_finite[skipped + t] == 0) continue;
    SumOf<E> room[kWidth];
    add_non_finite_row<SumOf<E>, kWidth>(
        rows.rows, skipped + t, operand_row<E, kWidth>(probs, t, room), seen + t * kWidth, out);
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
