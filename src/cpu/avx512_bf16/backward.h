// The backward pass on AVX512-BF16 where it differs from backward/main_loop.h: dQ += dS K, with dS
// as rows of bf16 and one product over all neighbouring panels of a block of keys; and delta.
#pragma once

#include "cpu/avx512_bf16/dot.h"
#include "cpu/backward/run.h"
#include "math/integer.h"

#if TILEWISE_HAS_AVX512_BF16

namespace tilewise::cpu::TILEWISE_TARGET {

// Stores dS of a panel, rounded to nearest even, as rows next to those of the other panels. Rows
// and lanes outside of the bounds become zeros.
template <IsBf16Pair E, int kMost, int kColumns>
void store_gradient_rows(const HeadContext&, const TileBounds& bounds, math::KeyRange rows,
                         std::int64_t panel, const KeyPass<float>&, const KeyScratch<E>& scratch) {
  constexpr int kWidth = kMost * 16;
  const GradientScratch<E>& own = scratch.gradient;
  const std::int64_t stride = scratch.panels * kWidth / 2;
  E* const to = scratch.gradient_rows + panel * kWidth / 2;
  const std::int64_t skipped = bounds.t0 - rows.begin;
  for (std::int64_t t = 0; t < rows.end - rows.begin; ++t) {
    for (int lane = 0; lane < kWidth; lane += 16) {
      const bool there = t >= skipped && t < skipped + bounds.t_count;
      const std::int64_t left = there ? math::clamp(bounds.lane_count - lane, 0, 16) : 0;
      const __mmask16 mask = static_cast<__mmask16>((1 << left) - 1);
      const float* const from = own.tile.gradients + (there ? t - skipped : 0) * kWidth + lane;
      const __m256i halves = __m256i(_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, from)));
      __builtin_memcpy(to + t * stride + lane / 2, &halves, sizeof(halves));
    }
  }
}

// Adds dS of all panels in the range, times their keys, to dQ of the rows. One word after the other
// is added to the stored sums, so that the number of panels that are added together does not change
// a bit.
template <IsBf16Pair E, int kWidth>
void add_gradient_rows_to_dq(const HeadContext& context, math::KeyRange rows, PanelRange run,
                             std::int64_t keys, const KeyPass<float>& pass,
                             const KeyScratch<E>& scratch) {
  if (!pass.adds_to_dq() || run.begin >= run.end) return;
  const QueryGradient<float>& gradient = pass.query_gradient;
  const std::int64_t stride = scratch.panels * kWidth / 2;
  const std::int64_t first = run.begin * kWidth;
  const std::int64_t depth = operand_count<E>(math::min(run.end * kWidth, keys) - first);
  float* const dq = gradient.at(context, rows.begin);
  gemm_wide<E, LeftOperand::kRowsAccumulate>(
      {scratch.gradient_rows + first / 2, stride}, rows.end - rows.begin,
      {scratch.key_rows + first / 2 * gradient.row, gradient.row, dq, gradient.row},
      gradient.row / 16, depth);
}

// SimdBackward with a delta that is summed up in the order of dP.
template <int kColumns>
struct Avx512Bf16Backward : SimdBackward<Bf16Pair, kColumns> {
  template <class Dout, class Out>
  static float inner_product(const Dout* dout, const Out* out, std::int64_t width) {
    if constexpr (std::is_same_v<Dout, math::BFloat16> && std::is_same_v<Out, Dout>) {
      return bf16_inner_product(dout, out, width);
    } else {
      return SimdBackward<Bf16Pair, kColumns>::inner_product(dout, out, width);
    }
  }
};

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AVX512_BF16
