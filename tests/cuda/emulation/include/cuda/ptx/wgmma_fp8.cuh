// src/cuda/ptx/wgmma_fp8.cuh for the emulation, whose sums are exact to the rounding of fp32.
#pragma once

#include <cstdint>

#include "cuda/emulation/machine.h"

namespace tilewise::cuda::ptx {

template <bool kE5M2>
inline constexpr emulation::WgmmaType kFp8Type =
    kE5M2 ? emulation::WgmmaType::kE5M2 : emulation::WgmmaType::kE4M3;

template <int kWidth>
struct WgmmaFp8 {
  static_assert(kWidth % 32 == 0 && kWidth <= emulation::kMaxColumns);

  template <bool kE5M2>
  static void ss(float (&d)[kWidth / 2], std::uint64_t a, std::uint64_t b, bool add) {
    emulation::block().wgmma.add(
        {kWidth, kFp8Type<kE5M2>, kFp8Type<kE5M2>, add, false, d, nullptr, a, b});
  }
  template <bool kE5M2>
  static void rs(float (&d)[kWidth / 2], const std::uint32_t* a, std::uint64_t b, bool add) {
    emulation::block().wgmma.add(
        {kWidth, kFp8Type<false>, kFp8Type<kE5M2>, add, false, d, a, 0, b});
  }
};

}  // namespace tilewise::cuda::ptx
