// src/cuda/ptx/memory_order.cuh for the emulation, where every write is seen at once. Who acquires
// a number may wait for another block to release it: that one has its turn first.
#pragma once

#include "cuda/emulation/block.h"
#include "cuda/emulation/races.h"

namespace tilewise::cuda::ptx {

inline TILEWISE_UNCHECKED void store_release(unsigned long long* to, unsigned long long x) {
  emulation::check_waited_for_dependency("st.release");
  *to = x;
  emulation::meet_blocks();
}

inline TILEWISE_UNCHECKED void add_release(unsigned long long* to, unsigned long long x) {
  store_release(to, *to + x);
}

inline TILEWISE_UNCHECKED unsigned long long load_acquire(const unsigned long long* from) {
  emulation::check_waited_for_dependency("ld.acquire");
  emulation::meet_blocks();
  return *from;
}

}  // namespace tilewise::cuda::ptx
