// The 128-byte swizzle of tiles in shared memory, and the descriptors of it for wgmma (PTX ISA
// 9.7.15.5.1).
//
// A tile of R rows and C columns of 16-bit numbers is C / 64 panels of (R, 64), one after the
// other. A row of a panel is 128 bytes, the largest width that TMA can swizzle. In each 1024 bytes
// (8 rows) the 16-byte chunk c of row r lies at chunk c ^ (r % 8), so that the 8 chunks of a column
// lie in 8 different groups of banks. Panels begin at multiples of 1024 bytes.
#pragma once

#include "math/config.h"

namespace tilewise::cuda::tile {

inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;
inline constexpr int kChunkBytes = 16;
inline constexpr int kSwizzleRows = 8;
inline constexpr int kSwizzleBytes = kSwizzleRows * kPanelRowBytes;

// Returns the byte of the panel where `byte` (0 to 127) of `row` lies.
TILEWISE_INLINE constexpr std::int32_t swizzled(std::int32_t row, std::int32_t byte) {
  const std::int32_t chunk = byte / kChunkBytes ^ row % kSwizzleRows;
  return row * kPanelRowBytes + chunk * kChunkBytes + byte % kChunkBytes;
}

// Returns the descriptor of an operand. `leading` and `stride` are distances in bytes whose meaning
// depends on the operand's layout. All three arguments are multiples of 16.
TILEWISE_INLINE constexpr std::uint64_t descriptor(std::uint32_t address, std::uint32_t leading,
                                                   std::uint32_t stride) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  return (std::uint64_t{address & 0x3FFFFu} >> 4) | (std::uint64_t{leading >> 4} << 16) |
         (std::uint64_t{stride >> 4} << 32) | kSwizzle128;
}

// Returns the descriptor of 16 columns of a panel from `address` on, whose rows are contiguous
// along the summed dimension (Q, K). Groups of 8 rows lie kSwizzleBytes apart; `leading` is not
// used.
TILEWISE_INLINE constexpr std::uint64_t rows_descriptor(std::uint32_t address) {
  return descriptor(address, kChunkBytes, kSwizzleBytes);
}

// Returns the descriptor of 16 rows of a tile from `address` on, whose rows are contiguous across
// the summed dimension (V). The next 64 columns lie `panel_bytes` further, the next 8 rows
// kSwizzleBytes further.
TILEWISE_INLINE constexpr std::uint64_t columns_descriptor(std::uint32_t address,
                                                           std::uint32_t panel_bytes) {
  return descriptor(address, panel_bytes, kSwizzleBytes);
}

}  // namespace tilewise::cuda::tile
