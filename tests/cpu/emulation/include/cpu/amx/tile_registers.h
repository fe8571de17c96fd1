// src/cpu/amx/tile_registers.h, emulated.
#pragma once

#include "cpu/emulation/tiles.h"
#include "cpu/simd/vector.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kTileDepth = 32;

TILEWISE_INLINE void configure_tiles() { emulation::configure_tiles(); }
TILEWISE_INLINE void release_tiles() { emulation::release_tiles(); }
template <int kTile>
TILEWISE_INLINE void load_tile(const void* from, std::int64_t stride) {
  emulation::load_tile(kTile, from, stride);
}
template <int kTile>
TILEWISE_INLINE void stream_tile(const void* from, std::int64_t stride) {
  emulation::load_tile(kTile, from, stride);
}
template <int kTile>
TILEWISE_INLINE void store_tile(void* to, std::int64_t stride) {
  emulation::store_tile(kTile, to, stride);
}
template <int kTile>
TILEWISE_INLINE void clear_tile() {
  emulation::clear_tile(kTile);
}
template <int kSum, int kA, int kB>
TILEWISE_INLINE void multiply_tiles() {
  emulation::multiply_tiles(kSum, kA, kB);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
