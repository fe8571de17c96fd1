// The swizzle of a tile of 16-bit numbers in shared memory for ldmatrix. Rows follow each other,
// and the 16-byte chunks of each row are permuted so that the same chunk of 8 consecutive rows lies
// in 8 different groups of banks. These are plain functions of host and device, so that tests can
// check them without a GPU.
//
// A row has kColumns / 8 chunks, a multiple of 4. If that is a multiple of 8 (128 bytes, all banks
// once), chunk c of row r lies at chunk c ^ r % 8. Otherwise two rows fill the banks, and the chunk
// lies at c ^ r / 2 % 4.
#pragma once

#include "math/config.h"

namespace tilewise::cuda::tile {

template <int kColumns>
struct LdmatrixTile {
  static_assert(kColumns % 32 == 0, "A row is a multiple of 64 bytes.");
  static constexpr int kRowBytes = kColumns * 2;
  static constexpr int kChunks = kColumns / 8;
  static constexpr int kGroup = kChunks % 8 == 0 ? 8 : 4;  // chunks that are permuted together

  TILEWISE_INLINE static constexpr std::int32_t permutation(std::int32_t row) {
    return kGroup == 8 ? row % 8 : row / 2 % 4;
  }
  // Returns the byte of the tile where chunk `chunk` of `row` lies.
  TILEWISE_INLINE static constexpr std::int32_t place(std::int32_t row, std::int32_t chunk) {
    return row * kRowBytes + (chunk ^ permutation(row)) * 16;
  }
};

// The row and the chunk whose address a lane gives to ldmatrix, for the operand at row 0 and chunk
// 0. An operand is 16 rows of two chunks, four (8, 8) matrices, and lane l gives the address of a
// row of matrix l / 8.
//   *_first: the first operand (Q) and the transposed second operand (V); matrices 0 and 1 have
//            different rows
//   *_second: the second operand (K); matrices 0 and 1 have different chunks
TILEWISE_INLINE constexpr std::int32_t lane_row_first(std::int32_t lane) { return lane % 16; }
TILEWISE_INLINE constexpr std::int32_t lane_chunk_first(std::int32_t lane) { return lane / 16; }
TILEWISE_INLINE constexpr std::int32_t lane_row_second(std::int32_t lane) {
  return lane % 8 + lane / 16 * 8;
}
TILEWISE_INLINE constexpr std::int32_t lane_chunk_second(std::int32_t lane) { return lane / 8 % 2; }

// Returns the lane's address for the operand 2 * step chunks to the right of the one whose address
// is `start`. The operand `rows` further down, a multiple of 8, lies rows * kRowBytes after it. All
// but one exclusive or is known at compile time.
template <int kColumns>
TILEWISE_INLINE constexpr std::uint32_t step_address(std::uint32_t start, int step) {
  constexpr int kGroupSteps = LdmatrixTile<kColumns>::kGroup / 2;
  return (start ^ static_cast<std::uint32_t>(step % kGroupSteps * 32)) +
         static_cast<std::uint32_t>(step / kGroupSteps * kGroupSteps * 32);
}

// Returns the lane's address `chunk` chunks to the right of `start`.
template <int kColumns>
TILEWISE_INLINE constexpr std::uint32_t chunk_address(std::uint32_t start, int chunk) {
  constexpr int kGroup = LdmatrixTile<kColumns>::kGroup;
  return (start ^ static_cast<std::uint32_t>(chunk % kGroup * 16)) +
         static_cast<std::uint32_t>(chunk / kGroup * kGroup * 16);
}

}  // namespace tilewise::cuda::tile
