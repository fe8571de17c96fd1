// src/cuda/ptx/wgmma.cuh for the emulation.
#pragma once

#include <cstdint>

#include "cuda/emulation/machine.h"

namespace tilewise::cuda::ptx {

inline void begin_products() { emulation::block().products.fence(); }
inline void commit_products() { emulation::block().products.commit(); }
template <int kGroups>
void wait_products() {
  emulation::block().products.wait(kGroups);
}

template <int kCount>
void settle(float (&registers)[kCount]) {
  emulation::block().products.check_settled(registers);
}
template <int kCount>
void settle(std::uint32_t (&)[kCount]) {}

template <int kWidth>
struct Product {
  static_assert(kWidth % 32 == 0 && kWidth <= emulation::kMostColumns);

  template <bool kFp16>
  static void scores(float (&d)[kWidth / 2], std::uint64_t a, std::uint64_t b, bool add) {
    emulation::block().products.add({kWidth, kFp16, add, d, nullptr, a, b});
  }
  template <bool kFp16>
  static void values(float (&d)[kWidth / 2], const std::uint32_t* a, std::uint64_t b, bool add) {
    emulation::block().products.add({kWidth, kFp16, add, d, a, 0, b});
  }
};

}  // namespace tilewise::cuda::ptx
