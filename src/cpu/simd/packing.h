// Packing: copies between tensors (any dtype, any strides) and the contiguous arrays of float or
// double that the kernels compute on.
#pragma once

#include "cpu/simd/conversion.h"
#include "cpu/simd/exact_multiply.h"
#include "cpu/simd/gemm.h"
#include "cpu/simd/row_block.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Returns the rows in place if they are contiguous and of type T, and otherwise converts them into
// `stage` (count x width). Rows with a larger stride are copied too: at strides of whole pages, as
// in (B, S, H, D), the product that reads down the columns would miss the TLB at every step.
template <class T>
Rows<T> stage_rows(const RowBlock& rows, T* stage) {
  static_assert(Operand<T>::kNumbers == 1, "pairs have a form of their own");
  if (rows.view->dtype == kArithmeticDtype<T> && rows.view->row == rows.width &&
      rows.evenly_spaced()) {
    return {RowAddresses<T>(rows)[0], rows.width};
  }
  with_storage(rows.view->dtype, [&](auto storage) {
    using S = decltype(storage);
    const RowAddresses<S> address(rows);
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const S* const from = address[r];
      T* const to = stage + r * rows.width;
      std::int64_t c = 0;
      for (; c + Vec<T>::kLanes <= rows.width; c += Vec<T>::kLanes)
        load_converted<T>(from + c).store(to + c);
      for (; c < rows.width; ++c) to[c] = math::load<T>(from[c]);
    }
  });
  return {stage, rows.width};
}

// Transposes rows into a panel: panel[c][lane] = row[lane][c] * factor. Lanes from rows.count on
// are zeros.
//
// panel: (width, kWidth)
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
          square[i] = lane0 + i < rows.count
                          ? multiply_exactly(
                                load_converted<T>(base + (lane0 + i) * rows.view->row + c), factor)
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

#if TILEWISE_HAS_AMX
// unpack_panel() to bf16, with the instruction that rounds and packs two registers. Like the tile
// products of AMX it flushes denormals. A word holds two columns, which halves the transposition.
template <int kWidth>
void unpack_panel_bf16(const RowBlock& rows, const float* factor, const float* panel) {
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

// Stores numbers of a row, in the type of the tensor.
struct StoreNumbers {
  template <class T, class S>
  TILEWISE_INLINE void registers(std::int64_t, Vec<T> x, S* to) const {
    store_converted(x, to);
  }
  template <class T, class S>
  TILEWISE_INLINE void number(std::int64_t, T x, S* to) const {
    math::store(x, to);
  }
};

// StoreNumbers for rows that are far away: before a register of a row is stored, the line that
// another row needs `ahead` numbers later is on its way.
struct StoreFarNumbers : StoreNumbers {
  std::int64_t ahead;

  template <class T, class S>
  TILEWISE_INLINE void registers(std::int64_t lane, Vec<T> x, S* to) const {
    prefetch_to_write(to + ahead);
    StoreNumbers::registers(lane, x, to);
  }
};

// Stores numbers of a row beside what the row holds: to = to * kept[lane] + x. The row is not read
// where reads[lane] is false.
template <class T>
struct MergeNumbers {
  const T* kept;      // (kWidth)
  const bool* reads;  // (kWidth)

  template <class S>
  TILEWISE_INLINE void registers(std::int64_t lane, Vec<T> x, S* to) const {
    if (reads[lane]) x = load_converted<T>(to) * Vec<T>(kept[lane]) + x;
    store_converted(x, to);
  }
  template <class S>
  TILEWISE_INLINE void number(std::int64_t lane, T x, S* to) const {
    math::store(reads[lane] ? math::load<T>(*to) * kept[lane] + x : x, to);
  }
};

// Transposes a panel into rows: store(row[lane][c], panel[c][lane] * factor[lane]).
//
// factor: (kWidth)
template <class T, int kWidth, class Store>
void unpack_panel_with(const RowBlock& rows, const T* factor, const T* panel, const Store& store) {
  constexpr int kLanes = Vec<T>::kLanes;
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
            store.registers(lane0 + lane, square[lane], to);
          } else {
            for (std::int64_t i = 0; i < rows.width - whole; ++i)
              store.number(lane0 + lane, T(square[lane].v[i]), to + i);
          }
        }
      }
    }
  });
}

// row[lane][c] = panel[c][lane] * factor[lane]. far: whether the sequence has kFarRows rows or more
template <class T, int kWidth>
void unpack_panel(const RowBlock& rows, const T* factor, const T* panel, bool far = false) {
#if TILEWISE_HAS_AMX
  if (rows.view->dtype == TILEWISE_BF16) return unpack_panel_bf16<kWidth>(rows, factor, panel);
#endif
  if (far) {
    const StoreFarNumbers store = {{}, Vec<T>::kLanes * rows.view->row};
    return unpack_panel_with<T, kWidth>(rows, factor, panel, store);
  }
  unpack_panel_with<T, kWidth>(rows, factor, panel, StoreNumbers());
}

// row[lane][c] += panel[c][lane] * factor[lane]
template <class T, int kWidth>
void add_panel(const RowBlock& rows, const T* factor, const T* panel) {
  T kept[kWidth];
  bool reads[kWidth];
  for (int lane = 0; lane < kWidth; ++lane) {
    kept[lane] = T(1);
    reads[lane] = true;
  }
  unpack_panel_with<T, kWidth>(rows, factor, panel, MergeNumbers<T>{kept, reads});
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
