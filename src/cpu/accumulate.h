// The product that sums over keys (or queries), and its careful form. In a partial tile a masked
// weight is 0, and 0 * NaN would carry a masked row's NaN into every output. The fast form does not
// look; a block whose result is not finite is computed again with the careful one (design 3.3).
#pragma once

#include "cpu/score_step.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// What the careful form needs: a staging area for a tile's rows, and which (row, lane) pairs see
// each other.
template <class T>
struct CarefulScratch {
  T* rows;             // (t_count, width)
  std::uint8_t* seen;  // (t_count, kWidth), from record_seen()
};

// seen[t][lane] = the score is not masked. To be called between finish_scores() and the
// exponential.
template <class T, int kWidth>
void record_seen(std::int64_t t_count, const T* scores, std::uint8_t* seen) {
  for (std::int64_t at = 0; at < t_count * kWidth; ++at)
    seen[at] = scores[at] == -math::Limits<T>::kInfinity ? 0 : 1;
}

template <class T>
TILEWISE_INLINE bool row_is_finite(const T* row, std::int64_t width) {
  bool finite = true;
  for (std::int64_t c = 0; c < width; ++c) finite = finite && math::is_finite(row[c]);
  return finite;
}

// out[c][lane] = out * factor + sum over t of rows[t][c] * weights[t][lane].
//
// Careful: rows that are not finite take part as zeros, which leaves every other row's sum as it
// would be without them, bit for bit; then each is added to the lanes that see it, and to no
// others.
template <class T, int kColumns>
void accumulate(Rows<T> rows, std::int64_t width, std::int64_t t_count, const T* weights,
                const Vec<T>* factor, const CarefulScratch<T>* careful, T* out,
                Ahead* ahead = nullptr) {
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  if (careful == nullptr)
    return product<T, kColumns, Axis::kColumns>(rows, width, weights, t_count, out, factor, ahead);
  for (std::int64_t t = 0; t < t_count; ++t) {
    const T* const from = rows.data + t * rows.stride;
    const bool finite = row_is_finite(from, width);
    for (std::int64_t c = 0; c < width; ++c) careful->rows[t * width + c] = finite ? from[c] : T(0);
  }
  product<T, kColumns, Axis::kColumns>(Rows<T>{careful->rows, width}, width, weights, t_count, out,
                                       factor);
  for (std::int64_t t = 0; t < t_count; ++t) {
    const T* const from = rows.data + t * rows.stride;
    if (row_is_finite(from, width)) continue;
    for (int lane = 0; lane < kWidth; ++lane) {
      if (careful->seen[t * kWidth + lane] == 0) continue;
      for (std::int64_t c = 0; c < width; ++c)
        out[c * kWidth + lane] += from[c] * weights[t * kWidth + lane];
    }
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
