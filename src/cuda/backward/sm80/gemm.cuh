// A product of two tiles of shared memory, by the warps of a block, on fragments of mma.m16n8k16.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/tile/ldmatrix_tile.h"

namespace tilewise::cuda::backward::sm80 {

// The way in which a tile of shared memory becomes an operand.
enum class Use { kAsStored, kTransposed };

// The left operand A (rows, summed). As stored, a row of the tile is a row of A; transposed, it is
// a column of A. `kColumns`: of the tile.
template <int kColumns, Use kUse>
struct LeftOperand {
  using Layout = tile::LdmatrixTile<kColumns>;

  // The offset of the lane's first element, for the operand whose first row is `row`.
  __device__ __forceinline__ static std::uint32_t offset(int row, std::uint32_t thread) {
    const int lane = static_cast<int>(thread) % 32;
    if constexpr (kUse == Use::kAsStored) {
      return Layout::place(row + tile::lane_row_first(lane), tile::lane_chunk_first(lane));
    } else {
      return Layout::place(tile::lane_row_second(lane), row / 8 + tile::lane_chunk_second(lane));
    }
  }
  // Loads rows 16 block to 16 block + 15 and, of the summed dimension, 16 step to 16 step + 15.
  __device__ __forceinline__ static void load(std::uint32_t (&a)[4], std::uint32_t start, int block,
                                              int step) {
    if constexpr (kUse == Use::kAsStored) {
      ptx::ldmatrix_x4(a, tile::step_address<kColumns>(start, step) + block * 16 * kColumns * 2);
    } else {
      ptx::ldmatrix_x4_trans(a,
                             tile::step_address<kColumns>(start, block) + step * 16 * kColumns * 2);
    }
  }
};

// The right operand B (summed, columns). As stored, a row of the tile is a row of B; transposed, it
// is a column of B.
template <int kColumns, Use kUse>
struct RightOperand {
  using Layout = tile::LdmatrixTile<kColumns>;

  // The offset of the lane's first element, for the operand whose first column is `column`.
  __device__ __forceinline__ static std::uint32_t offset(int column, std::uint32_t thread) {
    const int lane = static_cast<int>(thread) % 32;
    if constexpr (kUse == Use::kTransposed) {
      return Layout::place(column + tile::lane_row_second(lane), tile::lane_chunk_second(lane));
    } else {
      return Layout::place(tile::lane_row_first(lane), column / 8 + tile::lane_chunk_first(lane));
    }
  }
  // Loads columns 16 block to 16 block + 15 and, of the summed dimension, 16 step to 16 step + 15.
  __device__ __forceinline__ static void load(std::uint32_t (&b)[4], std::uint32_t start, int block,
                                              int step) {
    if constexpr (kUse == Use::kTransposed) {
      ptx::ldmatrix_x4(b, tile::step_address<kColumns>(start, step) + block * 16 * kColumns * 2);
    } else {
      ptx::ldmatrix_x4_trans(b,
                             tile::step_address<kColumns>(start, block) + step * 16 * kColumns * 2);
    }
  }
};

struct Offsets {
  std::uint32_t left, right;
};

// A warp's part of a product C (rows, columns) of kWarps warps, kRowWarps of them along the rows.
template <int kRows, int kColumns, int kWarps, int kRowWarps>
struct WarpTile {
  static constexpr int kColumnWarps = kWarps / kRowWarps;
  static constexpr int kOwnRows = kRows / kRowWarps;
  static constexpr int kOwnColumns = kColumns / kColumnWarps;
  static constexpr int kRowBlocks = kOwnRows / 16;
  static constexpr int kColumnBlocks = kOwnColumns / 16;
  static constexpr int kCount = 8 * kColumnBlocks;  // registers of a row block
  static_assert(kRowBlocks * 16 * kRowWarps == kRows &&
                    kColumnBlocks * 16 * kColumnWarps == kColumns,
                "A warp's part is made of blocks of 16 rows and 16 columns.");
  static_assert((kOwnColumns & (kOwnColumns - 1)) == 0 && (kOwnRows & (kOwnRows - 1)) == 0,
                "An operand's steps are exclusive bits of its address.");
  using Fragments = float[kRowBlocks][kCount];

  // The warp's first row and column.
  __device__ __forceinline__ static int row(std::uint32_t thread = threadIdx.x) {
    return static_cast<int>(thread) / 32 / kColumnWarps * kOwnRows;
  }
  __device__ __forceinline__ static int column(std::uint32_t thread = threadIdx.x) {
    return static_cast<int>(thread) / 32 % kColumnWarps * kOwnColumns;
  }

  __device__ __forceinline__ static void clear(Fragments& c) {
#pragma unroll
    for (auto& row_block : c) {
#pragma unroll
      for (float& x : row_block) x = 0;
    }
  }

  // The offsets of the lane's first elements of both operands in their tiles.
  template <class Left, class Right>
  __device__ __forceinline__ static Offsets offsets(std::uint32_t thread = threadIdx.x) {
    return {Left::offset(row(thread), thread), Right::offset(column(thread), thread)};
  }

  // C += A B over `kSummed` elements, of two tiles of shared memory. kKeepOffsets: the main loop
  // has registers for the offsets; else they are computed each time.
  template <class Left, class Right, int kSummed, bool kFp16, bool kKeepOffsets>
  __device__ __forceinline__ static void multiply(const unsigned char* a_tile,
                                                  const unsigned char* b_tile, const Offsets& kept,
                                                  Fragments& c) {
    const Offsets offsets =
        kKeepOffsets ? kept : WarpTile::offsets<Left, Right>(ptx::opaque(threadIdx.x));
    const std::uint32_t left = ptx::shared_address(a_tile) + offsets.left;
    const std::uint32_t right = ptx::shared_address(b_tile) + offsets.right;
#pragma unroll
    for (int step = 0; step < kSummed / 16; ++step) {
      std::uint32_t a[kRowBlocks][4];
#pragma unroll
      for (int row_block = 0; row_block < kRowBlocks; ++row_block)
        Left::load(a[row_block], left, row_block, step);
#pragma unroll
      for (int n = 0; n < kColumnBlocks; ++n) {
        std::uint32_t b[4];
        Right::load(b, right, n, step);
#pragma unroll
        for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
          ptx::mma_m16n8k16<kFp16>(&c[row_block][8 * n], a[row_block], b[0], b[1]);
          ptx::mma_m16n8k16<kFp16>(&c[row_block][8 * n + 4], a[row_block], b[2], b[3]);
        }
      }
    }
  }
};

}  // namespace tilewise::cuda::backward::sm80
