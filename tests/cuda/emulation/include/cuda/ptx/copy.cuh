// src/cuda/ptx/copy.cuh for the emulation.
#pragma once

#include <cstdint>

#include "cuda/emulation/machine.h"

namespace tilewise::cuda::ptx {

enum class Keep { kBriefly, kLong };  // there is no L2

inline void prefetch_map(const void* map) { emulation::CopyEngine::prefetch(map); }

inline void copy_tile(std::uint32_t to, const void* map, std::int32_t column, std::int32_t row,
                      std::int32_t head, std::int32_t batch, std::uint32_t barrier, Keep) {
  emulation::block().engine.copy(to, map, {column, row, head, batch}, barrier);
}

inline void prefetch_tile(const void* map, std::int32_t column, std::int32_t row, std::int32_t head,
                          std::int32_t batch, Keep) {
  emulation::CopyEngine::prefetch(map, {column, row, head, batch});
}

inline void store_tile(const void* map, std::int32_t column, std::int32_t row, std::int32_t head,
                       std::int32_t batch, std::uint32_t from) {
  emulation::block().engine.store(map, {column, row, head, batch}, from);
}
inline void commit_stores() { emulation::block().engine.commit(); }
inline void wait_stores_read() { emulation::block().engine.wait_stores(true); }
inline void wait_stores() { emulation::block().engine.wait_stores(false); }

inline void fence_shared_for_async() { emulation::block().shared.fence(); }

}  // namespace tilewise::cuda::ptx
