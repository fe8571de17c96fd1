// How a tile of 16-bit numbers lies in shared memory for ldmatrix: row after row, the 16-byte
// chunks of each row exchanged so that the same chunk of 8 rows in a row lies in 8 different groups
// of banks. Plain functions of host and device: a test looks at them without a GPU.
//
// A row is kColumns / 8 chunks, a multiple of 4. Where it is a multiple of 8 (128 bytes, all banks
// once), chunk c of row r lies at chunk c ^ r % 8. Where it is not, two rows fill the banks, and
// the chunk lies at c ^ r / 2 % 4.
#pragma once

#include "math/config.h"

namespace tilewise::cuda::tile {

template <int kColumns>
struct LdmatrixTile {
  static_assert(kColumns % 32 == 0, "A row is a multiple of 64 bytes.");
  static constexpr int kRowBytes = kColumns * 2;
  static constexpr int kChunks = kColumns / 8;
  static constexpr int kGroup = kChunks % 8 == 0 ? 8 : 4;  // chunks that are exchanged

  TILEWISE_INLINE static constexpr std::int32_t exchange(std::int32_t row) {
    return kGroup == 8 ? row % 8 : row / 2 % 4;
  }
  // Byte where chunk `chunk` of `row` lies.
  TILEWISE_INLINE static constexpr std::int32_t place(std::int32_t row, std::int32_t chunk) {
    return row * kRowBytes + (chunk ^ exchange(row)) * 16;
  }
};

// What a lane adds to a tile's address for ldmatrix. The matrices of an operand are (8, 8) parts of
// 16 rows and two chunks; lane l gives a row of matrix l / 8.
//   first operand (Q), and the transposed second one (V): rows first, then chunks
//   second operand (K): chunks first, then rows
TILEWISE_INLINE constexpr std::int32_t lane_row_first(std::int32_t lane) { return lane % 16; }
TILEWISE_INLINE constexpr std::int32_t lane_chunk_first(std::int32_t lane) { return lane / 16; }
TILEWISE_INLINE constexpr std::int32_t lane_row_second(std::int32_t lane) {
  return lane % 8 + lane / 16 * 8;
}
TILEWISE_INLINE constexpr std::int32_t lane_chunk_second(std::int32_t lane) { return lane / 8 % 2; }

// Walks over the operands of a tile: `start` is the byte of the lane's place in operand (0, 0), and
// the operand `rows` further down and 2 * step chunks further right lies at
// step_address(start, step) + rows * kRowBytes, for rows a multiple of 8: both parts are known when
// the kernel is compiled but for one exclusive or.
template <int kColumns>
TILEWISE_INLINE constexpr std::uint32_t step_address(std::uint32_t start, int step) {
  constexpr int kGroupSteps = LdmatrixTile<kColumns>::kGroup / 2;
  return (start ^ static_cast<std::uint32_t>(step % kGroupSteps * 32)) +
         static_cast<std::uint32_t>(step / kGroupSteps * kGroupSteps * 32);
}

// The same, a chunk further right at a time.
template <int kColumns>
TILEWISE_INLINE constexpr std::uint32_t chunk_address(std::uint32_t start, int chunk) {
  constexpr int kGroup = LdmatrixTile<kColumns>::kGroup;
  return (start ^ static_cast<std::uint32_t>(chunk % kGroup * 16)) +
         static_cast<std::uint32_t>(chunk / kGroup * kGroup * 16);
}

}  // namespace tilewise::cuda::tile
