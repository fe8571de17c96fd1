// src/cuda/ptx/memory_order.cuh for the emulation, where every write is seen at once. Who acquires
// a number may wait for another block to release it: that one has its turn first.
#pragma once

#include "cuda/emulation/block.h"
#include "cuda/emulation/races.h"

#include <type_traits>

namespace tilewise::cuda::ptx {

template <class T>
inline TILEWISE_UNCHECKED void store_release(T* to, std::type_identity_t<T> x) {
  emulation::check_waited_for_dependency("st.release");
  *to = x;
  emulation::meet_blocks();
}

template <class T>
inline TILEWISE_UNCHECKED T load_acquire(const T* from) {
  emulation::check_waited_for_dependency("ld.acquire");
  emulation::meet_blocks();
  return *from;
}

}  // namespace tilewise::cuda::ptx
