// Between tensors (any dtype, any strides) and the arrays that kernels compute on (float or double,
// contiguous).
#pragma once

#include <type_traits>

#include "cpu/product.h"
#include "math/integer.h"
#include "math/number.h"
#include "problem/problem.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using problem::View;

// Calls function(S{}) with the storage type S of a floating dtype.
template <class Function>
TILEWISE_INLINE void with_storage(std::int32_t dtype, Function function) {
  switch (dtype) {
    case TILEWISE_FP64:
      return function(double{});
    case TILEWISE_FP32:
      return function(float{});
    case TILEWISE_BF16:
      return function(math::BFloat16{});
    default:
      return function(math::Float16{});
  }
}

template <class T>
inline constexpr std::int32_t kArithmeticDtype = sizeof(T) == 8 ? TILEWISE_FP64 : TILEWISE_FP32;

// `count` rows of `width` numbers of a view, from row `first` of (batch, head).
struct RowBlock {
  const View* view;
  std::int64_t batch;
  std::int64_t head;
  std::int64_t first;
  std::int64_t count;
  std::int64_t width;
};

// A bf16 is the upper half of a float. Intrinsics: g++ widens a vector of 16-bit lanes in halves.
TILEWISE_INLINE Vec<float> load_bfloat16(const math::BFloat16* from) {
#if defined(__AVX512F__)
  __m256i halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return Vec<float>(Vec<float>::Native(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16)));
#elif defined(__AVX2__)
  __m128i halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return Vec<float>(Vec<float>::Native(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)));
#elif defined(__aarch64__)
  uint16x4_t halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return Vec<float>(Vec<float>::Native(vshll_n_u16(halves, 16)));
#elif defined(__SSE2__)
  __m128i halves = _mm_setzero_si128();
  __builtin_memcpy(&halves, from, 8);
  return Vec<float>(Vec<float>::Native(_mm_unpacklo_epi16(_mm_setzero_si128(), halves)));
#else
  float numbers[Vec<float>::kLanes];
  for (int i = 0; i < Vec<float>::kLanes; ++i) numbers[i] = math::to_float(from[i]);
  return Vec<float>::load(numbers);
#endif
}

TILEWISE_INLINE Vec<float> load_float16(const math::Float16* from) {
#if defined(__AVX512F__)
  __m256i halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return Vec<float>(Vec<float>::Native(_mm512_cvtph_ps(halves)));
#elif defined(__F16C__)
  __m128i halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return Vec<float>(Vec<float>::Native(_mm256_cvtph_ps(halves)));
#elif defined(__aarch64__)
  float16x4_t halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return Vec<float>(Vec<float>::Native(vcvt_f32_f16(halves)));
#elif defined(__SSE2__)  // math::to_float() in lanes
  __m128i halves = _mm_setzero_si128();
  __builtin_memcpy(&halves, from, 8);
  const __m128i words = _mm_unpacklo_epi16(halves, _mm_setzero_si128());
  const __m128i sign = _mm_slli_epi32(_mm_and_si128(words, _mm_set1_epi32(0x8000)), 16);
  const __m128i magnitude = _mm_slli_epi32(_mm_and_si128(words, _mm_set1_epi32(0x7fff)), 13);
  const __m128i scaled =
      _mm_castps_si128(_mm_mul_ps(_mm_castsi128_ps(magnitude), _mm_set1_ps(0x1p112f)));
  const __m128i not_finite = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32((0x7c00 << 13) - 1));
  const __m128i special = _mm_or_si128(magnitude, _mm_set1_epi32(0x7f800000));
  const __m128i chosen =
      _mm_or_si128(_mm_and_si128(not_finite, special), _mm_andnot_si128(not_finite, scaled));
  return Vec<float>(Vec<float>::Native(_mm_or_si128(sign, chosen)));
#else
  float numbers[Vec<float>::kLanes];
  for (int i = 0; i < Vec<float>::kLanes; ++i) numbers[i] = math::to_float(from[i]);
  return Vec<float>::load(numbers);
#endif
}

// kLanes numbers of storage type S, converted.
template <class T, class S>
TILEWISE_INLINE Vec<T> load_converted(const S* from) {
  if constexpr (std::is_same_v<T, S>) {
    return Vec<T>::load(from);
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<S, math::BFloat16>) {
    return load_bfloat16(from);
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<S, math::Float16>) {
    return load_float16(from);
  } else {
    T numbers[Vec<T>::kLanes];
    for (int i = 0; i < Vec<T>::kLanes; ++i) numbers[i] = math::load<T>(from[i]);
    return Vec<T>::load(numbers);
  }
}

// The rows in place if they already are contiguous and of type T, else converted into `stage`
// (count x width). Rows that lie apart are copied too: at strides of whole pages, as in (B, S, H,
// D), the product that reads down the columns would miss the TLB at every step.
template <class T>
Rows<T> stage_rows(const RowBlock& rows, T* stage) {
  static_assert(Operand<T>::kNumbers == 1, "pairs have a form of their own");
  const std::int64_t start = rows.view->offset(rows.batch, rows.head, rows.first);
  if (rows.view->dtype == kArithmeticDtype<T> && rows.view->row == rows.width) {
    return {static_cast<const T*>(rows.view->data) + start, rows.width};
  }
  with_storage(rows.view->dtype, [&](auto storage) {
    using S = decltype(storage);
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const S* const from = static_cast<const S*>(rows.view->data) + start + r * rows.view->row;
      T* const to = stage + r * rows.width;
      std::int64_t c = 0;
      for (; c + Vec<T>::kLanes <= rows.width; c += Vec<T>::kLanes)
        load_converted<T>(from + c).store(to + c);
      for (; c < rows.width; ++c) to[c] = math::load<T>(from[c]);
    }
  });
  return {stage, rows.width};
}

TILEWISE_INLINE Ahead ahead_of(const RowBlock& rows) {
  const std::int64_t size = problem::dtype_size(rows.view->dtype);
  return Ahead(static_cast<const char*>(rows.view->data) +
                   rows.view->offset(rows.batch, rows.head, rows.first) * size,
               rows.count, rows.width * size, rows.view->row * size);
}

// To nearest even by integer arithmetic: denormals stay, as the bf16 instructions would not let
// them. A NaN keeps its upper half and becomes quiet.
TILEWISE_INLINE void store_bfloat16(Vec<float> x, math::BFloat16* to) {
  typedef std::uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));
  typedef std::uint32_t Words __attribute__((vector_size(kVectorBytes)));
  const Words bits = Words(x.v);
  const Words rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const Words quiet = (bits >> 16) | 0x40;
  const Halves halves = __builtin_convertvector(x.v == x.v ? rounded : quiet, Halves);
  __builtin_memcpy(to, &halves, sizeof(halves));
}

template <class T, class S>
TILEWISE_INLINE void store_converted(Vec<T> x, S* to) {
  if constexpr (std::is_same_v<T, S>) {
    x.store(to);
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<S, math::BFloat16>) {
    store_bfloat16(x, to);
#if defined(__AVX512F__)
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<S, math::Float16>) {
    const __m256i halves = _mm512_cvtps_ph(__m512(x.v), _MM_FROUND_TO_NEAREST_INT);
    __builtin_memcpy(to, &halves, sizeof(halves));
#endif
  } else {
    T numbers[Vec<T>::kLanes];
    x.store(numbers);
    for (int i = 0; i < Vec<T>::kLanes; ++i) math::store(numbers[i], to + i);
  }
}

// panel[c][lane] = row[lane][c] * factor, lanes from rows.count on are 0.  panel is (width, kWidth)
template <class T, int kWidth>
void pack_panel(const RowBlock& rows, T factor, T* panel) {
  static_assert(Operand<T>::kNumbers == 1, "pairs have a form of their own");
  constexpr int kLanes = Vec<T>::kLanes;
  const std::int64_t start = rows.view->offset(rows.batch, rows.head, rows.first);
  const std::int64_t whole = rows.width / kLanes * kLanes;
  with_storage(rows.view->dtype, [&](auto storage) {
    using S = decltype(storage);
    const S* const base = static_cast<const S*>(rows.view->data) + start;
    for (std::int64_t lane0 = 0; lane0 < kWidth; lane0 += kLanes) {
      for (std::int64_t c = 0; c < whole; c += kLanes) {
        Vec<T> square[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          square[i] =
              lane0 + i < rows.count
                  ? load_converted<T>(base + (lane0 + i) * rows.view->row + c) * Vec<T>(factor)
                  : Vec<T>(T(0));
        }
        transpose(square);
        for (int i = 0; i < kLanes; ++i) square[i].store(panel + (c + i) * kWidth + lane0);
      }
      for (std::int64_t c = whole; c < rows.width; ++c) {
        for (std::int64_t lane = lane0; lane < lane0 + kLanes; ++lane) {
          panel[c * kWidth + lane] =
              lane < rows.count ? math::load<T>(base[lane * rows.view->row + c]) * factor : T(0);
        }
      }
    }
  });
}

#if TILEWISE_HAS_TILES
// unpack_panel() to bf16 by the instruction that rounds and packs two registers: like the unit's
// products, it flushes denormals. A word is two columns: half the transposition.
template <int kWidth>
void unpack_bfloats(const RowBlock& rows, const float* factor, const float* panel) {
  std::uint16_t* const base = static_cast<std::uint16_t*>(rows.view->data) +
                              rows.view->offset(rows.batch, rows.head, rows.first);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i order =
      _mm512_or_si512(lanes, _mm512_slli_epi32(_mm512_add_epi32(lanes, _mm512_set1_epi32(16)), 16));
  for (std::int64_t lane0 = 0; lane0 < rows.count; lane0 += 16) {
    const Vec<float> factors = Vec<float>::load(factor + lane0);
    const std::int64_t count = rows.count - lane0 < 16 ? rows.count - lane0 : 16;
    const auto column = [&](std::int64_t c) {
      return c < rows.width ? __m512((Vec<float>::load(panel + c * kWidth + lane0) * factors).v)
                            : _mm512_setzero_ps();
    };
    for (std::int64_t c = 0; c < rows.width; c += 32) {
      Vec<float> square[16];
      for (int i = 0; i < 16; ++i) {
        const __m512bh both = _mm512_cvtne2ps_pbh(column(c + std::int64_t{2} * i + 1),
                                                  column(c + std::int64_t{2} * i));
        __m512i halves;
        __builtin_memcpy(&halves, &both, sizeof(halves));
        square[i] = Vec<float>(Vec<float>::Native(_mm512_permutexvar_epi16(order, halves)));
      }
      transpose(square);
      const std::int64_t left = rows.width - c;
      const __mmask32 mask = left >= 32 ? ~__mmask32(0) : (__mmask32(1) << left) - 1;
      for (std::int64_t lane = 0; lane < count; ++lane)
        _mm512_mask_storeu_epi16(base + (lane0 + lane) * rows.view->row + c, mask,
                                 __m512i(square[lane].v));
    }
  }
}
#endif

// row[lane][c] = panel[c][lane] * factor[lane].  factor: (kWidth)
template <class T, int kWidth>
void unpack_panel(const RowBlock& rows, const T* factor, const T* panel) {
  constexpr int kLanes = Vec<T>::kLanes;
#if TILEWISE_HAS_TILES
  if (rows.view->dtype == TILEWISE_BF16) return unpack_bfloats<kWidth>(rows, factor, panel);
#endif
  const std::int64_t start = rows.view->offset(rows.batch, rows.head, rows.first);
  const std::int64_t whole = rows.width / kLanes * kLanes;
  with_storage(rows.view->dtype, [&](auto storage) {
    using S = decltype(storage);
    S* const base = static_cast<S*>(rows.view->data) + start;
    for (std::int64_t lane0 = 0; lane0 < rows.count; lane0 += kLanes) {
      const Vec<T> factors = Vec<T>::load(factor + lane0);
      const std::int64_t lanes = math::min(kLanes, rows.count - lane0);
      for (std::int64_t c = 0; c < rows.width; c += kLanes) {
        Vec<T> square[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          square[i] = c + i < rows.width ? Vec<T>::load(panel + (c + i) * kWidth + lane0) * factors
                                         : Vec<T>(T(0));
        }
        transpose(square);
        for (std::int64_t lane = 0; lane < lanes; ++lane) {
          S* const to = base + (lane0 + lane) * rows.view->row + c;
          if (c < whole) {
            store_converted(square[lane], to);
          } else {
            for (std::int64_t i = 0; i < rows.width - whole; ++i)
              math::store(square[lane].v[i], to + i);
          }
        }
      }
    }
  });
}

// A number of a statistics view (lse, dlse).
template <class T>
TILEWISE_INLINE T load_statistic(const View& view, std::int64_t b, std::int64_t h,
                                 std::int64_t row) {
  const std::int64_t at = view.offset(b, h, row);
  return view.dtype == TILEWISE_FP64 ? static_cast<T>(static_cast<const double*>(view.data)[at])
                                     : static_cast<T>(static_cast<const float*>(view.data)[at]);
}
template <class T>
TILEWISE_INLINE void store_statistic(const View& view, std::int64_t b, std::int64_t h,
                                     std::int64_t row, T value) {
  const std::int64_t at = view.offset(b, h, row);
  if (view.dtype == TILEWISE_FP64) {
    static_cast<double*>(view.data)[at] = static_cast<double>(value);
  } else {
    static_cast<float*>(view.data)[at] = static_cast<float>(value);
  }
}

// sum of a[c] * b[c], in kPartialSums interleaved sums that are added up at the end: one serial sum
// would wait for each addition.
template <class T, class A, class B>
TILEWISE_INLINE T inner_product(const A* a, const B* b, std::int64_t count) {
  constexpr int kPartialSums = 16;
  constexpr int kLanes = Vec<T>::kLanes;
  Vec<T> sums[kPartialSums / kLanes];
  for (Vec<T>& x : sums) x = Vec<T>(T(0));
  std::int64_t c = 0;
  for (; c + kPartialSums <= count; c += kPartialSums) {
    for (int i = 0; i < kPartialSums; i += kLanes) {
      sums[i / kLanes] =
          sums[i / kLanes] + load_converted<T>(a + c + i) * load_converted<T>(b + c + i);
    }
  }
  T partial[kPartialSums];
  for (int i = 0; i < kPartialSums; i += kLanes) sums[i / kLanes].store(partial + i);
  for (; c < count; ++c) partial[0] += math::load<T>(a[c]) * math::load<T>(b[c]);
  T sum = T(0);
  for (int i = 0; i < kPartialSums; ++i) sum += partial[i];
  return sum;
}

// True if the first `lanes` lanes of all `count` rows of a panel are finite.
template <class T, int kWidth>
bool all_finite(const T* panel, std::int64_t count, std::int64_t lanes) {
  T difference[kWidth] =
      {};  // x - x is 0 for finite x, NaN else; lane by lane, so that it runs in registers
  for (std::int64_t r = 0; r < count; ++r) {
    for (int lane = 0; lane < kWidth; lane += Vec<T>::kLanes) {
      const Vec<T> x = Vec<T>::load(panel + r * kWidth + lane);
      (Vec<T>::load(difference + lane) + (x - x)).store(difference + lane);
    }
  }
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    if (difference[lane] != T(0)) return false;
  }
  return true;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
