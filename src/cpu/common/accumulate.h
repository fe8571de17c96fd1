// The product that sums over keys (or queries), and its careful form. In a partial tile a masked
// weight is 0, and 0 * NaN would carry a masked row's NaN into every output. The fast form does not
// look; a block whose result is not finite is computed again with the careful one (design 3.3).
#pragma once

#include "cpu/common/gemm_masked.h"
#include "cpu/common/non_finite.h"
#include "cpu/simd/packing_bf16.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// out[c][lane] = out * factor + sum over t of rows[skipped + t][c] * weights[t][lane].
//
// Careful (rows.odd is set): rows that are not finite take part as zeros, which leaves every other
// row's sum as it would be without them, bit for bit; then each is added to the lanes that see it,
// and to no others. seen: (t_count, kWidth). Weights outside of `steps` are 0. weights: from
// as_operands(); skipped: whole operands.
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
