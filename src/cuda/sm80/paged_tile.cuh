// Copies tiles of K and V of a paged cache: the page of every row is looked up.
#pragma once

#include "cuda/sm80/cp_async_tile.cuh"

namespace tilewise::cuda::sm80 {

// Where the row of a key lies: rows of a sequence are a stride apart, or in pages.
struct KeyOffsets {
  const tile::Pages& pages;
  const problem::View& view;  // k or v
  std::int64_t batch;

  __device__ __forceinline__ std::int64_t operator()(std::int32_t key) const {
    return pages.present() ? pages.offset(view, batch, key) : key * view.row;
  }
};

// Loads the tile of keys from `first` on into the tile at `to`, as load_edge() does. `rows` begin
// with row 0 of page 0. `address` is that of the thread's first chunk in the tile.
template <int kRows, int kColumns, int kThreads>
__device__ __forceinline__ void load_pages(const Rows& rows, const KeyOffsets& offsets,
                                           std::int32_t first, std::uint32_t address,
                                           unsigned char* to, std::uint32_t thread) {
  using Copy = TileCopy<kRows, kColumns, kThreads>;
  const std::int32_t columns_left = rows.columns - Copy::chunk(thread) * 8;
#pragma unroll 1
  for (int i = 0; i < kRows / Copy::kStep; ++i) {
    const std::int32_t key = first + Copy::row(thread) + i * Copy::kStep;
    const std::int32_t left = key < rows.count ? columns_left : 0;
    const std::uint16_t* const from =
        left > 0 ? rows.first + offsets(key) + Copy::chunk(thread) * 8 : rows.first;
    const int place = i * Copy::kStep * Copy::Layout::kRowBytes;
#pragma unroll 1
    for (int group = 0; group < Copy::kGroups; ++group) {
      const bool inside = group * 64 < left;
      const std::uint16_t* const chunk = inside ? from + group * 64 : rows.first;
      if (rows.aligned16) {
        ptx::cp_async_16(address + place + group * 128, chunk, inside);
      } else {
        *reinterpret_cast<uint4*>(to + Copy::tile_offset(thread) + place + group * 128) =
            load_elements(chunk, left - group * 64);
      }
    }
  }
}

}  // namespace tilewise::cuda::sm80
