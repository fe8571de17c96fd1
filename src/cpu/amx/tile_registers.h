// The instructions of AMX: eight registers of 16 rows of 64 bytes (Intel SDM vol. 1, chapter 18).
//
// TDPBF16PS adds up the products of even columns and those of odd columns separately, each in
// order, and then adds both to the sum. It rounds to nearest even and flushes denormals.
#pragma once

#include "cpu/simd/vector.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kTileDepth = 32;  // bf16 of a row

// Between these two calls the thread owns the tile registers. They are not an object with a
// destructor, because its cleanup would need the exception tables, a weak symbol for all targets.
TILEWISE_INLINE void configure_tiles() {
  struct alignas(64) {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } configuration;
  // NOTE: g++ 12's _tile_loadconfig names only 8 of the 64 bytes as its operand, and the stores to
  // the others are dropped.
  __asm__ volatile("ldtilecfg %0" : : "m"(configuration));
}
TILEWISE_INLINE void release_tiles() { _tile_release(); }

// NOTE: assembler is used because the intrinsics of g++ 12 do not say that they access memory, and
// stores sink below them. "memory" also keeps the slices of vector work where they are written.
// Strides are in bytes.
template <int kTile>
TILEWISE_INLINE void load_tile(const void* from, std::int64_t stride) {
  __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0"
                   :
                   : "i"(kTile), "r"(from), "r"(stride)
                   : "memory");
}
// A load with the streaming hint, for data that passes through the L1 once.
template <int kTile>
TILEWISE_INLINE void stream_tile(const void* from, std::int64_t stride) {
  __asm__ volatile("tileloaddt1 (%1,%2,1), %%tmm%c0"
                   :
                   : "i"(kTile), "r"(from), "r"(stride)
                   : "memory");
}
template <int kTile>
TILEWISE_INLINE void store_tile(void* to, std::int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)"
                   :
                   : "i"(kTile), "r"(to), "r"(stride)
                   : "memory");
}
template <int kTile>
TILEWISE_INLINE void clear_tile() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// sum += a * b
template <int kSum, int kA, int kB>
TILEWISE_INLINE void multiply_tiles() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
