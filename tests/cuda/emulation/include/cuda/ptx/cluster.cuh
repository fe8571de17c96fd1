// src/cuda/ptx/cluster.cuh for the emulation.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/emulation/cluster.h"
#include "cuda/ptx/tma.cuh"

namespace tilewise::cuda::ptx {

inline void cluster_sync() { emulation::meet_cluster(); }

inline std::uint32_t cluster_address(std::uint32_t address, int rank) {
  return emulation::to_cluster(address, rank);
}

inline void st_cluster(std::uint32_t to, std::int32_t x) {
  const emulation::InBlockOf other(to);
  std::memcpy(emulation::from_shared(other.address(), sizeof(x), "st.shared::cluster"), &x,
              sizeof(x));
}

inline void mbarrier_arrive_cluster(std::uint32_t barrier) {
  emulation::block().shared.meet();
  const emulation::InBlockOf other(barrier);
  emulation::block().barriers.arrive_from_cluster(other.address());
}

inline void bulk_copy_cluster(std::uint32_t to, std::uint32_t from, std::uint32_t bytes,
                              std::uint32_t barrier) {
  emulation::block().tma.copy_to_cluster(to, from, bytes, barrier);
}

inline void tma_load_pair(std::uint32_t to, const void* map, std::int32_t column, std::int32_t row,
                          std::int32_t head, std::int32_t batch, std::uint32_t barrier, L2Hint) {
  emulation::block().tma.copy_to_both(to, map, {column, row, head, batch}, barrier);
}

}  // namespace tilewise::cuda::ptx
