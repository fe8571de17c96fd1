// dQ += dS K in pairs of keys (vdpbf16ps): dS as rows of bf16, and the product over all panels of a
// block of keys that lie side by side; and delta.
#pragma once

#include "cpu/backward_run.h"
#include "math/integer.h"

#if TILEWISE_HAS_DOTS

namespace tilewise::cpu::TILEWISE_TARGET {

// dS of a panel, rounded to nearest even, as rows of all panels side by side; zeros for the tile's
// rows and lanes outside the frame. The keys that are not finite are added to dQ here, from fp32.
template <IsPair E, int kMost, int kColumns>
void keep_gradients(const HeadContext& context, const Frame& frame, math::KeyRange rows,
                    std::int64_t panel, const KeyPass<float>& pass, const KeyScratch<E>& scratch) {
  constexpr int kWidth = kMost * 16;
  const GradientScratch<E>& own = scratch.gradient;
  const std::int64_t stride = scratch.panels * kWidth / 2;
  E* const to = scratch.gradient_rows + panel * kWidth / 2;
  const std::int64_t skipped = frame.t0 - rows.begin;
  for (std::int64_t t = 0; t < rows.end - rows.begin; ++t) {
    for (int lane = 0; lane < kWidth; lane += 16) {
      const bool there = t >= skipped && t < skipped + frame.t_count;
      const std::int64_t left = there ? math::clamp(frame.lane_count - lane, 0, 16) : 0;
      const __mmask16 mask = static_cast<__mmask16>((1 << left) - 1);
      const float* const from = own.tile.gradients + (there ? t - skipped : 0) * kWidth + lane;
      const __m256i halves = __m256i(_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, from)));
      __builtin_memcpy(to + t * stride + lane / 2, &halves, sizeof(halves));
    }
  }
  if (pass.keys_are_finite) return;
  add_unusual_keys<float, kWidth>(context, frame, own.tile.gradients, own.careful.seen,
                                  pass.query_gradient.at(context, frame.t0),
                                  pass.query_gradient.row);
}

// dQ of rows += their dS times the keys of the panels. One word after the other is added to what is
// there: how many panels go together changes no bit.
template <IsPair E, int kWidth>
void add_kept_gradients(const HeadContext& context, math::KeyRange rows, PanelRun run,
                        std::int64_t keys, const KeyPass<float>& pass,
                        const KeyScratch<E>& scratch) {
  if (!pass.adds_to_dq() || run.begin >= run.end) return;
  const QueryGradient<float>& gradient = pass.query_gradient;
  const std::int64_t stride = scratch.panels * kWidth / 2;
  const std::int64_t first = run.begin * kWidth;
  const std::int64_t depth = operands<E>(math::min(run.end * kWidth, keys) - first);
  float* const dq = gradient.at(context, rows.begin);
  wide_product<E, Left::kRowsOnto>(
      {scratch.gradient_rows + first / 2, stride}, rows.end - rows.begin,
      {scratch.key_rows + first / 2 * gradient.row, gradient.row, dq, gradient.row},
      gradient.row / 16, depth);
}

// sum of a[c] * b[c], word after word, as the products of dP add them.
TILEWISE_INLINE float dot_inner_product(const math::BFloat16* a, const math::BFloat16* b,
                                        std::int64_t width) {
  const auto word = [](const math::BFloat16* from, auto whole) {
    decltype(whole) numbers = 0;
    __builtin_memcpy(&numbers, from, sizeof(numbers));
    return __m128bh(_mm_cvtsi32_si128(static_cast<int>(numbers)));
  };
  __m128 sum = _mm_setzero_ps();
  std::int64_t c = 0;
  for (; c + 2 <= width; c += 2)
    sum = _mm_dpbf16_ps(sum, word(a + c, std::uint32_t{}), word(b + c, std::uint32_t{}));
  if (c < width)
    sum = _mm_dpbf16_ps(sum, word(a + c, std::uint16_t{}), word(b + c, std::uint16_t{}));
  return _mm_cvtss_f32(sum);
}

// WideKeys whose delta has the order of dP.
template <int kColumns>
struct DotKeys : WideKeys<Pair, kColumns> {
  template <class Dout, class Out>
  static float inner_product(const Dout* dout, const Out* out, std::int64_t width) {
    if constexpr (std::is_same_v<Dout, math::BFloat16> && std::is_same_v<Out, Dout>) {
      return dot_inner_product(dout, out, width);
    } else {
      return WideKeys<Pair, kColumns>::inner_product(dout, out, width);
    }
  }
};

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_DOTS
