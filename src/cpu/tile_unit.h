// The matrix unit of AMX, in the few forms that src/cpu uses: eight registers of 16 rows of 64
// bytes. 0 to 3 are sums (16 x 16 float), 4 and 5 left operands (16 rows x 32 bf16), 6 and 7 right
// operands (16 pairs of rows x 16 columns). Intel SDM vol. 1, chapter 18; TDPBF16PS adds in the
// order of pairs, rounds to nearest even and flushes denormals.
#pragma once

#include "cpu/simd.h"

#if TILEWISE_HAS_TILES

namespace tilewise::cpu::TILEWISE_TARGET {

inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kTileDepth = 32;  // bf16 of a row

// Between these two calls the thread has the tile registers. (No object with a destructor: its
// cleanup would need the exception tables, a weak symbol for all targets.)
TILEWISE_INLINE void configure_tiles() {
  struct alignas(64) {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } configuration;
  // NOTE: g++ 12's _tile_loadconfig names 8 of the 64 bytes as its operand, and the stores to the
  // others are dropped.
  __asm__ volatile("ldtilecfg %0" : : "m"(configuration));
}
TILEWISE_INLINE void release_tiles() { _tile_release(); }

// The compiler does not see what memory the instructions touch: nothing may move across.
TILEWISE_INLINE void tile_fence() { __asm__ volatile("" ::: "memory"); }

// A 32 x 32 block of sums in registers 0 to 3: rows 0-15 in 0 and 1, rows 16-31 in 2 and 3; a flat
// one has 16 rows. Strides are in bytes.
TILEWISE_INLINE void load_flat_block(const float* c, std::int64_t stride) {
  _tile_loadd(0, c, stride);
  _tile_loadd(1, c + 16, stride);
}
TILEWISE_INLINE void store_flat_block(float* c, std::int64_t stride) {
  _tile_stored(0, c, stride);
  _tile_stored(1, c + 16, stride);
}
TILEWISE_INLINE void store_block(float* c, std::int64_t stride) {
  store_flat_block(c, stride);
  _tile_stored(2, c + 4 * stride, stride);
  _tile_stored(3, c + 4 * stride + 16, stride);
}

// Left operands are packed as tiles of 1 KB, 16 rows of 32 bf16: rows apart in memory may share few
// sets of the L1. They stream from the L2, and their loads say so, that the rest stay in the L1.
inline constexpr std::int64_t kTileElements = kTileRows * kTileDepth;
inline constexpr std::int64_t kTileStride = kTileDepth * 2;  // bytes

// What a step multiplies: two tiles of a (rows 0-15 and 16-31) and the 16 pairs of rows of b that
// belong to their columns.
struct TileOperands {
  const std::uint16_t* top;
  const std::uint16_t* bottom;
  const std::uint32_t* b;
  std::int64_t b_stride;  // bytes
};

TILEWISE_INLINE void add_flat_step(const TileOperands& o) {
  _tile_stream_loadd(4, o.top, kTileStride);
  _tile_loadd(6, o.b, o.b_stride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, o.b + 16, o.b_stride);
  _tile_dpbf16ps(1, 4, 7);
}
TILEWISE_INLINE void add_step(const TileOperands& o) {
  add_flat_step(o);
  _tile_stream_loadd(5, o.bottom, kTileStride);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// The first step of a block: sums start from c (kAdd), or from zero. The block before,
// still in the registers, goes to `pending` (if any) between the products: stored at its own end,
// it would leave the unit idle.  83 % of the unit's peak became 99 % (products from the L1).
template <bool kAdd>
TILEWISE_INLINE void begin_block(const TileOperands& o, const float* c, float* pending,
                                 std::int64_t stride) {
  _tile_stream_loadd(4, o.top, kTileStride);
  _tile_loadd(6, o.b, o.b_stride);
  if (pending != nullptr) _tile_stored(0, pending, stride);
  if (kAdd) {
    _tile_loadd(0, c, stride);
  } else {
    _tile_zero(0);
  }
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, o.b + 16, o.b_stride);
  if (pending != nullptr) _tile_stored(1, pending + 16, stride);
  if (kAdd) {
    _tile_loadd(1, c + 16, stride);
  } else {
    _tile_zero(1);
  }
  _tile_dpbf16ps(1, 4, 7);
  _tile_stream_loadd(5, o.bottom, kTileStride);
  if (pending != nullptr) _tile_stored(2, pending + 4 * stride, stride);
  if (kAdd) {
    _tile_loadd(2, c + 4 * stride, stride);
  } else {
    _tile_zero(2);
  }
  _tile_dpbf16ps(2, 5, 6);
  if (pending != nullptr) _tile_stored(3, pending + 4 * stride + 16, stride);
  if (kAdd) {
    _tile_loadd(3, c + 4 * stride + 16, stride);
  } else {
    _tile_zero(3);
  }
  _tile_dpbf16ps(3, 5, 7);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_TILES
