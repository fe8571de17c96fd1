// The product that sums over keys (or queries), and its careful form. In a partial tile a masked
// weight is 0, and 0 * NaN would carry a masked row's NaN into every output. The fast form does not
// look; a block whose result is not finite is computed again with the careful one (design 3.3).
#pragma once

#include "cpu/dot_operand.h"
#include "cpu/steps.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// What the careful form needs to know of a tile.
struct CarefulScratch {
  std::uint8_t* seen;   // (rows of the tile, kWidth), from record_seen()
  std::uint8_t* odd_a;  // (rows of the tile), for PackedColumns: of Q, K or V
  std::uint8_t* odd_b;  // of dO
};

// seen[t][lane] = the score is not masked. To be called between finish_scores() and the
// exponential.
template <class T, int kWidth>
void record_seen(std::int64_t t_count, const T* scores, std::uint8_t* seen) {
  for (std::int64_t at = 0; at < t_count * kWidth; ++at)
    seen[at] = scores[at] == -math::Limits<T>::kInfinity ? 0 : 1;
}

// out[c][lane] += row[c] * weight[lane] for the lanes that see the row.
template <class T, int kWidth>
void add_odd_row(const RowBlock& rows, std::int64_t r, const T* weights, const std::uint8_t* seen,
                 T* out) {
  with_storage(rows.view->dtype, [&](auto storage) {
    using S = decltype(storage);
    const S* const row = static_cast<const S*>(rows.view->data) +
                         rows.view->offset(rows.batch, rows.head, rows.first + r);
    for (std::int64_t c = 0; c < rows.width; ++c) {
      for (int lane = 0; lane < kWidth; ++lane) {
        if (seen[lane] != 0) out[c * kWidth + lane] += math::load<T>(row[c]) * weights[lane];
      }
    }
  });
}

// out[c][lane] = out * factor + sum over t of rows[skipped + t][c] * weights[t][lane].
//
// Careful (rows.odd is set): rows that are not finite take part as zeros, which leaves every other
// row's sum as it would be without them, bit for bit; then each is added to the lanes that see it,
// and to no others. seen: (t_count, kWidth). Weights outside of `steps` are 0. weights: from
// as_operands(); skipped: whole operands.
template <class E, int kColumns, int kWidth>
void accumulate(const PackedColumns<E>& rows, std::int64_t skipped, std::int64_t t_count,
                const Steps<kColumns>& steps, const E* weights, const Vec<SumOf<E>>* factor,
                const std::uint8_t* seen, SumOf<E>* out, Ahead* ahead = nullptr) {
  stepped_packed_product<E, kColumns, kWidth>(rows.data + operands<E>(skipped) * kProductRows,
                                              rows.rows.width, weights, t_count, steps, out, factor,
                                              ahead);
  for (std::int64_t t = 0; rows.odd != nullptr && t < t_count; ++t) {
    if (rows.odd[skipped + t] == 0) continue;
    SumOf<E> room[kWidth];
    add_odd_row<SumOf<E>, kWidth>(rows.rows, skipped + t, operand_row<E, kWidth>(weights, t, room),
                                  seen + t * kWidth, out);
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
