// src/cuda/ptx/wgmma.cuh for the emulation.
#pragma once

#include <cstdint>

#include "cuda/emulation/machine.h"

namespace tilewise::cuda::ptx {

inline void wgmma_fence() { emulation::block().wgmma.fence(); }
inline void wgmma_commit() { emulation::block().wgmma.commit(); }
template <int kGroups>
void wgmma_wait() {
  emulation::block().wgmma.wait(kGroups);
}

template <int kCount>
void fence_operand(float (&registers)[kCount]) {
  emulation::block().wgmma.check_waited_for(registers);
}
template <int kCount>
void fence_operand(std::uint32_t (&)[kCount]) {}

template <bool kFp16>
inline constexpr emulation::WgmmaType kWgmmaType =
    kFp16 ? emulation::WgmmaType::kFp16 : emulation::WgmmaType::kBf16;

template <int kWidth>
struct Wgmma {
  static_assert(kWidth % 32 == 0 && kWidth <= emulation::kMaxColumns);

  template <bool kFp16>
  static void ss(float (&d)[kWidth / 2], std::uint64_t a, std::uint64_t b, bool add) {
    emulation::block().wgmma.add(
        {kWidth, kWgmmaType<kFp16>, kWgmmaType<kFp16>, add, false, d, nullptr, a, b});
  }
  template <bool kFp16>
  static void tt(float (&d)[kWidth / 2], std::uint64_t a, std::uint64_t b, bool add) {
    emulation::block().wgmma.add(
        {kWidth, kWgmmaType<kFp16>, kWgmmaType<kFp16>, add, true, d, nullptr, a, b});
  }
  template <bool kFp16>
  static void rs(float (&d)[kWidth / 2], const std::uint32_t* a, std::uint64_t b, bool add) {
    emulation::block().wgmma.add(
        {kWidth, kWgmmaType<kFp16>, kWgmmaType<kFp16>, add, true, d, a, 0, b});
  }
};

}  // namespace tilewise::cuda::ptx
