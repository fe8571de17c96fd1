// Non-finite.
#pragma once

#include "cpu/simd/finite.h"
#include "cpu/simd/packing.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// What the careful form needs to know of a tile.
struct NonFiniteScratch {
  std::uint8_t* seen;          // (rows of the tile, kWidth), from record_seen()
  std::uint8_t* non_finite_a;  // (rows of the tile), for PackedColumns: of Q, K or V
  std::uint8_t* non_finite_b;  // of dO
};

// seen[t][lane] = the score is not masked. To be called between apply_score_mod() and the
// exponential.
template <class T, int kWidth>
void record_seen(std::int64_t t_count, const T* scores, std::uint8_t* seen) {
  for (std::int64_t at = 0; at < t_count * kWidth; ++at)
    seen[at] = scores[at] == -math::Limits<T>::kInfinity ? 0 : 1;
}

// out[c][lane] += row[c] * weight[lane] for the lanes that see the row.
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
