// Containment of NaN and infinity: a masked key or value never affects a result, even if it holds
// NaN. In a partial tile a masked probability is 0, but 0 * NaN is NaN, and a product would carry
// the NaN of one row into every output. The fast path does not check its inputs. If a finished
// block holds a value that is not finite, the block is computed again on the slow path: rows that
// are not finite enter the products as zeros, and are then added one by one to the lanes that see
// them.
#pragma once

#include "cpu/simd/finite.h"
#include "cpu/simd/packing.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Arrays of the slow path, for one tile.
struct NonFiniteScratch {
  std::uint8_t* seen;          // (rows of the tile, kWidth), from record_seen()
  std::uint8_t* non_finite_a;  // (rows of the tile), for the PackedColumns of Q or V
  std::uint8_t* non_finite_b;  // (rows of the tile), for those of dO
};

// seen[t][lane] = 1 where the score is not masked. It must be called after apply_score_mod() and
// before the exponential.
template <class T, int kWidth>
void record_seen(std::int64_t t_count, const T* scores, std::uint8_t* seen) {
  for (std::int64_t at = 0; at < t_count * kWidth; ++at)
    seen[at] = scores[at] == -math::Limits<T>::kInfinity ? 0 : 1;
}

// out[c][lane] += row[c] * probs[lane] for the lanes that see the row.
template <class T, int kWidth>
void add_non_finite_row(const RowBlock& rows, std::int64_t r, const T* probs,
                        const std::uint8_t* seen, T* out) {
  with_storage(rows.view->dtype, [&](auto storage) {
    using S = decltype(storage);
    const S* const row = static_cast<const S*>(rows.view->data) +
                         rows.view->offset(rows.batch, rows.head, rows.first + r);
    for (std::int64_t c = 0; c < rows.width; ++c) {
      for (int lane = 0; lane < kWidth; ++lane) {
        if (seen[lane] != 0) out[c * kWidth + lane] += math::load<T>(row[c]) * probs[lane];
      }
    }
  });
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
