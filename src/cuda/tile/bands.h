// The structured mask of a query tile: a list of bands (math/mask_rule.h) in 32 bits. A causal
// mask, a window and a whole sequence are one band; a list of slices gives as many as touch the
// tile. Plain functions of host and device.
#pragma once

#include "math/integer.h"
#include "math/mask_rule.h"

namespace tilewise::cuda::tile {

inline constexpr std::int64_t kMaxRows = (std::int64_t{1} << 29) - 1;  // of a sequence

// A band of 32-bit numbers, and the head that it belongs to.
struct Band : math::BandOf<std::int32_t> {
  std::int32_t head;  // -1: all
};

// Returns the band in 32 bits. Its coordinates must be below 2^29 and its offsets below 2^30
// (math::window_band, math::slice_band).
TILEWISE_INLINE Band narrow_band(const math::Band& band, std::int64_t head) {
  const auto narrow = [](std::int64_t x) {
    constexpr std::int64_t kLimit = std::int64_t{1} << 30;
    return static_cast<std::int32_t>(math::clamp(x, -kLimit, kLimit));
  };
  return {{narrow(band.row_begin), narrow(band.row_end), narrow(band.key_begin),
           narrow(band.key_end), narrow(band.lower_slope), narrow(band.lower_offset),
           narrow(band.upper_slope), narrow(band.upper_offset)},
          static_cast<std::int32_t>(head)};
}

using Range = math::KeyRangeOf<std::int32_t>;

// Contains some bands of a list.
struct BandBox {
  Range rows;
  Range keys;
  Range heads;  // begins with -1 if a band belongs to all heads

  // Whether a band in the box may show some of the keys to some of the rows of a head.
  TILEWISE_INLINE bool touches(std::int32_t head, const Range& some_rows,
                               const Range& some_keys) const {
    return rows.begin < some_rows.end && rows.end > some_rows.begin && keys.begin < some_keys.end &&
           keys.end > some_keys.begin &&
           (heads.begin < 0 || (heads.begin <= head && heads.end > head));
  }
};

// The bands of a list are sorted by cells of the matrix of scores, head by head, and have a box for
// each group of kBandsOfBox, and one for each kBoxesOfBox of these.
inline constexpr std::int32_t kBandsOfBox = 32;
inline constexpr std::int32_t kBoxesOfBox = 32;

// The arrays of a sorted list of bands, one behind the other.
struct BandTable {
  Band* bands;          // (slices)
  BandBox* boxes;       // (slices / 32)
  BandBox* outer;       // (slices / 1024)
  unsigned* cell_ends;  // (cells), for the sort

  TILEWISE_INLINE BandTable(const Band* first, std::int64_t slices)
      : bands(const_cast<Band*>(first)),
        boxes(reinterpret_cast<BandBox*>(bands + slices)),
        outer(boxes + math::ceil_div(slices, kBandsOfBox)),
        cell_ends(reinterpret_cast<unsigned*>(outer +
                                              math::ceil_div(slices, kBandsOfBox * kBoxesOfBox))) {}

  static constexpr std::int64_t bytes(std::int64_t slices, std::int64_t cells) {
    const std::int64_t boxes =
        math::ceil_div(slices, kBandsOfBox) + math::ceil_div(slices, kBandsOfBox * kBoxesOfBox);
    return slices * std::int64_t{sizeof(Band)} + boxes * std::int64_t{sizeof(BandBox)} +
           cells * std::int64_t{sizeof(unsigned)};
  }
};

// Returns the first group of bands, from band `i` on, whose box touches the rows and keys of a
// head. `i` and the result are multiples of kBandsOfBox; the result is not below the number of
// slices if there is none.
TILEWISE_INLINE std::int32_t next_box(const BandTable& table, std::int32_t i, std::int32_t slices,
                                      std::int32_t head, const Range& rows, const Range& keys) {
  constexpr std::int32_t kOuter = kBandsOfBox * kBoxesOfBox;
  while (i < slices) {
    if (i % kOuter == 0 && !table.outer[i / kOuter].touches(head, rows, keys)) {
      i += kOuter;
    } else if (!table.boxes[i / kBandsOfBox].touches(head, rows, keys)) {
      i += kBandsOfBox;
    } else {
      break;
    }
  }
  return i;
}

// Cells of `rows` x `keys`: so many that there are about as many as bands, and none smaller than
// 64 x 64. The cells of a head that begin with the same rows are neighbours or, if keys lead, those
// that begin with the same keys.
struct BandCells {
  std::int32_t rows;
  std::int32_t keys;
  std::int32_t across;   // cells along the side that does not lead
  std::int32_t of_head;  // cells of a head
  std::int32_t count;    // those of all heads, and of no head in particular
  std::int32_t keys_lead;

  // Returns the cell that a band of `head` (-1: all) begins in.
  TILEWISE_INLINE std::int32_t cell_of(const Band& band) const {
    const std::int32_t row = band.row_begin / rows;
    const std::int32_t key = band.key_begin / keys;
    const std::int32_t cell = keys_lead != 0 ? key * across + row : row * across + key;
    return (band.head + 1) * of_head + cell;
  }
};

// Returns the keys that some row of first .. last sees through the band; empty if end <= begin.
TILEWISE_INLINE Range keys_of(const Band& band, std::int32_t first, std::int32_t last) {
  return math::tile_keys(band, first, last + 1);
}

enum TileClass : std::int32_t { kEmpty = 0, kPartial = 1, kFull = 2 };

// Says whether the band leaves the tile of rows first .. last and keys [keys_begin, keys_end)
// empty, full or partial. A key tile that reaches beyond band.key_end is partial. Unlike
// math::classify(), it calls a tile empty as well if the last row's keys end before the first row's
// keys begin.
TILEWISE_INLINE TileClass classify(const Band& band, std::int32_t first, std::int32_t last,
                                   std::int32_t keys_begin, std::int32_t keys_end) {
  const Range keys = keys_of(band, first, last);
  if (keys.end <= keys.begin || keys.end <= keys_begin || keys.begin >= keys_end) return kEmpty;
  const bool all_rows = band.row_begin <= first && band.row_end > last;
  return all_rows && band.begin(last) <= keys_begin && band.end(first) >= keys_end ? kFull
                                                                                   : kPartial;
}

}  // namespace tilewise::cuda::tile
