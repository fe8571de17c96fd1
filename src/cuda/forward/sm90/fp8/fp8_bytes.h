// Four numbers of fp8 in a word: which are not finite, and what stands for them (transposer.cuh).
// Plain functions of host and device.
#pragma once

#include <cstdint>

#include "math/config.h"

namespace tilewise::cuda::sm90 {

// 1 in each byte whose number is NaN or infinite. e4m3 has no infinity.
template <bool kE5M2>
TILEWISE_INLINE constexpr std::uint32_t non_finite_fp8(std::uint32_t numbers) {
  constexpr std::uint32_t kExponents = kE5M2 ? 0x7c7c7c7cu : 0x7f7f7f7fu;
  constexpr std::uint32_t kStep = kE5M2 ? 0x04040404u : 0x01010101u;
  return ((numbers & kExponents) + kStep) >> 7 & 0x01010101u;
}

// The numbers, with zeros in the place of those that are not finite.
template <bool kE5M2>
TILEWISE_INLINE constexpr std::uint32_t finite_fp8(std::uint32_t numbers) {
  return numbers & ~(non_finite_fp8<kE5M2>(numbers) * 0xFFu);
}

// 1 (the number) for each that adds +infinity to a sum: +infinity and NaN; or -infinity: -infinity
// and NaN. Other bytes are 0.
template <bool kE5M2, bool kNegative>
TILEWISE_INLINE constexpr std::uint32_t markers_of_fp8(std::uint32_t numbers) {
  if constexpr (!kE5M2) return non_finite_fp8<false>(numbers) * 0x38u;
  const std::uint32_t is_nan = numbers | numbers >> 1;  // by its mantissa
  const std::uint32_t negative = numbers >> 7;
  return (non_finite_fp8<true>(numbers) & (is_nan | (kNegative ? negative : ~negative))) * 0x3cu;
}

// Products that a tile with such numbers takes: of +infinity, and of -infinity where there is one.
template <bool kE5M2>
inline constexpr int kMarkerStages = kE5M2 ? 2 : 1;

}  // namespace tilewise::cuda::sm90
