// Products of fp16 on AMX: an fp16 is the sum of two bf16 terms (packing.h), a bf16 has one term.
// All products of terms are added to one sum, step by step, so that every tile is loaded for two of
// them.
#pragma once

#include "cpu/amx/tile_product.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// Four products of terms are exact. Three leave out the product of both low terms, which is below
// 2^-16 of the whole.
enum class TermProducts { kOne, kThree, kFour };

template <int kTerms>
inline constexpr TermProducts kExactProducts =
    kTerms == 1 ? TermProducts::kOne : TermProducts::kFour;
template <int kTerms>
inline constexpr TermProducts kNearProducts =
    kTerms == 1 ? TermProducts::kOne : TermProducts::kThree;

// Distance of the low terms from the high terms.
struct TermDistance {
  std::int64_t left;   // in bf16
  std::int64_t right;  // in words
};

template <bool kLowLeft, bool kLowRight>
TILEWISE_INLINE TileOperands operands_of_terms(const TileOperands& high, TermDistance low) {
  const std::int64_t left = kLowLeft ? low.left : 0;
  return {high.top + left, high.bottom + left, high.b + (kLowRight ? low.right : 0), high.b_stride};
}

// A step consists of first_operands(), in begin_block() or add_step(), and add_other_terms().
template <TermProducts kProducts>
TILEWISE_INLINE TileOperands first_operands(const TileOperands& high, TermDistance low) {
  return operands_of_terms<kProducts == TermProducts::kThree, false>(high, low);
}
template <TermProducts kProducts, Streamed kStreamed = Streamed::kLeft, class Slices>
TILEWISE_INLINE void add_other_terms(const TileOperands& high, TermDistance low, Slices& slices) {
  if constexpr (kProducts == TermProducts::kThree) {
    add_step<kStreamed, Loaded::kLeft, 4>(high, slices);
    add_step<kStreamed, Loaded::kRight, 8>(operands_of_terms<false, true>(high, low), slices);
  } else if constexpr (kProducts == TermProducts::kFour) {
    add_step<kStreamed, Loaded::kRight, 4>(operands_of_terms<false, true>(high, low), slices);
    add_step<kStreamed, Loaded::kLeft, 8>(operands_of_terms<true, true>(high, low), slices);
    add_step<kStreamed, Loaded::kRight, 12>(operands_of_terms<true, false>(high, low), slices);
  }
}
template <TermProducts kProducts, Streamed kStreamed = Streamed::kLeft, class Slices>
TILEWISE_INLINE void add_terms(const TileOperands& high, TermDistance low, Slices& slices) {
  add_step<kStreamed>(first_operands<kProducts>(high, low), slices);
  add_other_terms<kProducts, kStreamed>(high, low, slices);
}
// For one or three products.
template <TermProducts kProducts>
TILEWISE_INLINE void add_flat_terms(const TileOperands& high, TermDistance low) {
  static_assert(kProducts != TermProducts::kFour);
  add_flat_step(first_operands<kProducts>(high, low));
  if constexpr (kProducts == TermProducts::kThree) {
    add_flat_step(high);
    add_flat_step(operands_of_terms<false, true>(high, low));
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
