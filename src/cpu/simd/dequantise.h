// Rows of fp8 as rows of floats: every stored number is converted exactly and multiplied by the
// scale of its row (docs/semantics.md, "fp8"). The kernels compute on these rows as on fp32 inputs,
// so that they have no code of their own for fp8.
#pragma once

#include <type_traits>

#include "cpu/simd/row_block.h"
#include "cpu/simd/vector.h"
#include "math/float8.h"
#include "math/scalar.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using problem::Problem;

// The kernels for bf16 and fp16 alone do not take fp8, and are compiled without it.
#if TILEWISE_HAS_AVX512_BF16
inline constexpr bool kReadsFp8 = false;
#else
inline constexpr bool kReadsFp8 = true;
#endif

// A stored number of fp8, of either format.
struct Float8Code {
  std::uint8_t bits;
};

// An fp8 is the upper half of an fp16 (e5m2), or its exponent and mantissa are those of an fp16
// that is 2^-8 times as large (e4m3), which is how SIMD instructions convert it. All NaN of e5m2,
// but not those of e4m3, are NaN of fp16.
#if defined(__AVX512F__) || defined(__F16C__) || defined(__aarch64__)
#define TILEWISE_CONVERTS_FP16 1
#else
#define TILEWISE_CONVERTS_FP16 0
#endif

#if TILEWISE_CONVERTS_FP16
template <class Format>
inline constexpr float kFp16Factor = std::is_same_v<Format, math::Float8E4M3> ? 0x1p8f : 1.0f;

// Loads kLanes numbers, divided by kFp16Factor.
template <class Format>
TILEWISE_INLINE Vec<float> load_as_fp16(const Float8Code* from) {
  constexpr bool kE4M3 = std::is_same_v<Format, math::Float8E4M3>;
#if defined(__AVX512F__)
  __m128i codes;
  __builtin_memcpy(&codes, from, sizeof(codes));
  const __m256i halves = kE4M3 ? _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7),
                                                  _mm256_set1_epi16(static_cast<short>(0xBF80)))
                               : _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8);
  return Vec<float>(Vec<float>::Native(_mm512_cvtph_ps(halves)));
#elif defined(__F16C__)
  __m128i codes = _mm_setzero_si128();
  __builtin_memcpy(&codes, from, 8);
  const __m128i halves = kE4M3 ? _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(codes), 7),
                                               _mm_set1_epi16(static_cast<short>(0xBF80)))
                               : _mm_slli_epi16(_mm_cvtepu8_epi16(codes), 8);
  return Vec<float>(Vec<float>::Native(_mm256_cvtph_ps(halves)));
#else
  std::uint16_t halves[4];
  for (int i = 0; i < 4; ++i) {
    const std::uint16_t code = from[i].bits;
    halves[i] =
        static_cast<std::uint16_t>(kE4M3 ? (code & 0x80u) << 8 | (code & 0x7Fu) << 7 : code << 8);
  }
  float16x4_t numbers;
  __builtin_memcpy(&numbers, halves, sizeof(numbers));
  return Vec<float>(Vec<float>::Native(vcvt_f32_f16(numbers)));
#endif
}

// Returns true if a row of e4m3 holds a NaN.
TILEWISE_INLINE bool has_e4m3_nan(const Float8Code* row, std::int64_t width) {
  bool any = false;
  std::int64_t c = 0;
#if defined(__AVX2__)
  for (; c + 32 <= width; c += 32) {
    __m256i codes;
    __builtin_memcpy(&codes, row + c, sizeof(codes));
    const __m256i magnitudes = _mm256_or_si256(codes, _mm256_set1_epi8(static_cast<char>(0x80)));
    any = any || _mm256_movemask_epi8(_mm256_cmpeq_epi8(magnitudes, _mm256_set1_epi8(-1))) != 0;
  }
#endif
  for (; c < width; ++c) any = any || (row[c].bits & 0x7F) == 0x7F;
  return any;
}
#endif

// to[c] = from[c] * scale, rounded once.
template <class Format>
TILEWISE_INLINE void dequantise_row(const Float8Code* from, std::int64_t width, float scale,
                                    float* to) {
#if TILEWISE_CONVERTS_FP16
  constexpr std::int64_t kLanes = Vec<float>::kLanes;
  const float factor = scale * kFp16Factor<Format>;
  const bool has_nan = std::is_same_v<Format, math::Float8E4M3> && has_e4m3_nan(from, width);
  if (width >= kLanes && math::is_finite(factor) && !has_nan) {
    const Vec<float> factors(factor);
    for (std::int64_t c = 0; c + kLanes <= width; c += kLanes)
      (load_as_fp16<Format>(from + c) * factors).store(to + c);
    const std::int64_t last = width - kLanes;  // some of its columns are converted again
    if (width % kLanes != 0) (load_as_fp16<Format>(from + last) * factors).store(to + last);
    return;
  }
#endif
  for (std::int64_t c = 0; c < width; ++c) to[c] = math::to_float(Format{from[c].bits}) * scale;
}

// Converts rows of q, k or v into `stage` (rows.count, stride). Columns from rows.width on are
// zeros.
//
// kv_head: of q, that which the query head reads
template <class Format>
void dequantise_rows_of(const Problem& problem, const RowBlock& rows, std::int64_t kv_head,
                        std::int64_t stride, float* stage) {
  const RowAddresses<const Float8Code> address(rows);
  for (std::int64_t r = 0; r < rows.count; ++r) {
    float* const to = stage + r * stride;
    dequantise_row<Format>(address[r], rows.width,
                           problem.descale(*rows.view, rows.batch, kv_head, rows.first + r), to);
    for (std::int64_t c = rows.width; c < stride; ++c) to[c] = 0;
  }
}
inline void dequantise_rows(const Problem& problem, const RowBlock& rows, std::int64_t kv_head,
                            std::int64_t stride, float* stage) {
  rows.view->dtype == TILEWISE_E4M3
      ? dequantise_rows_of<math::Float8E4M3>(problem, rows, kv_head, stride, stage)
      : dequantise_rows_of<math::Float8E5M2>(problem, rows, kv_head, stride, stage);
}

// Rows of floats that were converted from others, as a view of their own. It must outlive rows().
class StagedView {
 public:
  StagedView(float* stage, const RowBlock& rows) : rows_{nullptr, 0, 0, 0, rows.count, rows.width} {
    view_.data = stage;
    view_.dtype = TILEWISE_FP32;
    view_.row = rows.width;
    view_.column = 1;
    rows_.view = &view_;
  }
  StagedView(const StagedView&) = delete;
  StagedView& operator=(const StagedView&) = delete;
  const RowBlock& rows() const { return rows_; }

 private:
  View view_;
  RowBlock rows_;
};

}  // namespace tilewise::cpu::TILEWISE_TARGET
