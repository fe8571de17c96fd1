// How tiles lie in shared memory, and how wgmma is told (PTX ISA 9.7.15.5.1).
//
// A tile of R rows and C columns of 16-bit numbers is C / 64 panels of (R, 64), one behind the
// other: a panel's row is 128 bytes, the width over which the copy engine can swizzle. In each 1024
// bytes (8 rows) the 16-byte chunk c of row r lies at chunk c ^ (r % 8), so that the 8 chunks of a
// column are in 8 different groups of banks. Panels begin at multiples of 1024 bytes.
#pragma once

#include "math/config.h"

namespace tilewise::cuda::tile {

inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;
inline constexpr int kChunkBytes = 16;
inline constexpr int kSwizzleRows = 8;
inline constexpr int kSwizzleBytes = kSwizzleRows * kPanelRowBytes;

// Byte of a panel where `byte` (0 to 127) of `row` lies.
TILEWISE_INLINE constexpr std::int32_t swizzled(std::int32_t row, std::int32_t byte) {
  const std::int32_t chunk = byte / kChunkBytes ^ row % kSwizzleRows;
  return row * kPanelRowBytes + chunk * kChunkBytes + byte % kChunkBytes;
}

// Descriptors of operands. `leading` and `stride` are byte distances whose meaning depends on the
// operand; all three are multiples of 16.
TILEWISE_INLINE constexpr std::uint64_t descriptor(std::uint32_t address, std::uint32_t leading,
                                                   std::uint32_t stride) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  return (std::uint64_t{address & 0x3FFFFu} >> 4) | (std::uint64_t{leading >> 4} << 16) |
         (std::uint64_t{stride >> 4} << 32) | kSwizzle128;
}

// 16 columns of a panel from `address` on, rows contiguous along the summed dimension (Q, K):
// groups of 8 rows lie kSwizzleBytes apart, `leading` is not used.
TILEWISE_INLINE constexpr std::uint64_t rows_descriptor(std::uint32_t address) {
  return descriptor(address, kChunkBytes, kSwizzleBytes);
}

// 16 rows of a tile from `address` on, rows contiguous across the summed dimension (V): the next 64
// columns lie `panel_bytes` further, the next 8 rows kSwizzleBytes.
TILEWISE_INLINE constexpr std::uint64_t columns_descriptor(std::uint32_t address,
                                                           std::uint32_t panel_bytes) {
  return descriptor(address, panel_bytes, kSwizzleBytes);
}

}  // namespace tilewise::cuda::tile
