// src/cuda/ptx/tma.cuh for the emulation.
#pragma once

#include <cstdint>

#include "cuda/emulation/machine.h"

namespace tilewise::cuda::ptx {

enum class L2Hint { kEvictFirst, kEvictLast };  // there is no L2

inline void prefetch_tensormap(const void* map) { emulation::Tma::prefetch(map); }

inline void tma_load(std::uint32_t to, const void* map, std::int32_t column, std::int32_t row,
                     std::int32_t head, std::int32_t batch, std::uint32_t barrier, L2Hint) {
  emulation::block().tma.copy(to, map, {column, row, head, batch}, barrier);
}

inline void bulk_load(std::uint32_t to, const void* from, std::uint32_t bytes,
                      std::uint32_t barrier) {
  emulation::block().tma.copy_bytes(to, from, bytes, barrier);
}

inline void tma_prefetch(const void* map, std::int32_t column, std::int32_t row, std::int32_t head,
                         std::int32_t batch, L2Hint) {
  emulation::Tma::prefetch(map, {column, row, head, batch});
}

inline void tma_store(const void* map, std::int32_t column, std::int32_t row, std::int32_t head,
                      std::int32_t batch, std::uint32_t from) {
  emulation::block().tma.store(map, {column, row, head, batch}, from);
}
inline void bulk_reduce_add(float* to, std::uint32_t from, std::uint32_t bytes) {
  emulation::block().tma.reduce_add(to, from, bytes);
}
inline void tma_store_commit() { emulation::block().tma.commit(); }
inline void tma_store_wait_read() { emulation::block().tma.store_wait(true); }
inline void tma_store_wait() { emulation::block().tma.store_wait(false); }

inline void fence_proxy_async() { emulation::block().shared.fence(); }

}  // namespace tilewise::cuda::ptx
