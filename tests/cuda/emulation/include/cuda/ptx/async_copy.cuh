// src/cuda/ptx/async_copy.cuh for the emulation.
#pragma once

#include <cstdint>

#include "cuda/emulation/copies.h"

namespace tilewise::cuda::ptx {

inline void copy_chunk(std::uint32_t to, const void* from, bool inside) {
  emulation::begin_copy(to, inside ? from : nullptr, 16);
}

inline void copy_chunk(std::uint32_t to, const void* from) { emulation::begin_copy(to, from, 16); }

inline void copy_word(std::uint32_t to, const void* from, bool inside) {
  emulation::begin_copy(to, inside ? from : nullptr, 4);
}

inline void commit_copies() { emulation::commit_copies(); }

template <int kGroups>
void wait_copies() {
  emulation::wait_copies(kGroups);
}

}  // namespace tilewise::cuda::ptx
