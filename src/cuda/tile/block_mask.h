// The block mask of a problem with slices or a boolean mask: which tiles of scores are empty, full
// or partial, and what the rows of a partial one see, as bits. Plain structures of host and device.
#pragma once

#include <cstdint>

#include "cuda/tile/bands.h"
#include "cuda/tile/fragment.h"
#include "cuda/tile/mask_bits.h"

namespace tilewise::cuda::tile {

inline constexpr std::int32_t kTilesOfWord = 32;

// 32 key tiles of a query tile.
struct alignas(16) BlockMaskWord {
  std::uint32_t visited;    // bit n: a row sees a key of key tile n,
  std::uint32_t partial;    // and does not see another, or another row does not
  std::uint32_t asked;      // tiles that have bits: the partial ones, and some more
  std::int32_t first_bits;  // number of the bits of the first of these
  std::int32_t room;        // how many of these have bits
  // The word before this one that has visited tiles, or -1; in a backward kernel the one after it.
  std::int32_t next;
};

// A query tile: all that it takes to begin with its key tiles, in one piece.
struct alignas(32) BlockMaskRow {
  std::int32_t q_tile;
  std::int32_t count;          // of key tiles that are visited
  std::int32_t start_key;      // the one that comes first: a full one, if there is one,
  std::int32_t start_bits;     // and its KeyTile::bits
  std::int32_t last_word;      // the last word that has any,
  std::uint32_t last_visited;  // and those that it has
  std::int32_t cut;            // whether any of them is partial
  std::int32_t first_word;     // the first word that has any
};

// The mask of a key tile when it is computed: the number of its bits, or one of these.
inline constexpr std::int32_t kFullTile = -1;      // every row sees every key
inline constexpr std::int32_t kHiddenTile = -2;    // no row sees a key
inline constexpr std::int32_t kSearchedTile = -3;  // there was no room for its bits
struct KeyTile {
  std::int32_t key;  // its number, times two; 1 more: the query tile has no other left
  std::int32_t bits;
};

// The lists of a launch. Sequences and heads that see the same keys share a list.
struct BlockMask {
  BlockMaskWord* words;  // (lists, query tiles, words)
  BlockMaskRow* rows;    // (lists, query tiles)
  BlockMaskRow* order;   // (lists, query tiles): the same, the longest first
  std::uint32_t* bits;   // (capacity, rows of a query tile, kLanesPerRow), as mask_bits.h has them
  unsigned* used;        // how many of them are taken
  const Band* bands;     // of the slices: a BandTable
  std::int32_t capacity;
  std::int32_t lists;
  std::int32_t q_tiles;     // of a list
  std::int32_t word_count;  // of a query tile
  std::int32_t batch_step;  // 0: all sequences share lists
  std::int32_t head_step;   // 0: all heads share a list

  TILEWISE_INLINE std::int32_t list_of(std::int32_t batch, std::int32_t head) const {
    return batch * batch_step + head * head_step;
  }
};

// The bits of a lane's column pairs of a tile of k_tile keys that are all visible.
TILEWISE_INLINE constexpr std::uint32_t all_columns(int k_tile) {
  return k_tile == 128 ? ~0u : (1u << k_tile / kLanesPerRow) - 1;
}

TILEWISE_INLINE std::int32_t last_bit(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return 31 - __clz(static_cast<int>(bits));
#else
  return 31 - __builtin_clz(bits);
#endif
}
TILEWISE_INLINE std::int32_t bit_count(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __popc(bits);
#else
  return __builtin_popcount(bits);
#endif
}

// KeyTile::bits of a tile of the word.
TILEWISE_INLINE std::int32_t bits_of(const BlockMaskWord& word, std::int32_t bit) {
  if ((word.partial >> bit & 1) == 0) return kFullTile;
  const std::int32_t number = bit_count(word.asked & ((1u << bit) - 1));
  return number < word.room ? word.first_bits + number : kSearchedTile;
}

// The key tiles of a query tile in the order in which they are computed: the start tile, then the
// others from the last one down. The caller holds what does not change, and words are read again
// for each tile, since the producer has few registers.
class KeyTileWalk {
 public:
  // At the start tile of a query tile that visits one at least. start_bits: its bits_of(). visited:
  // of the last word.
  TILEWISE_INLINE void begin(std::int32_t start_bits, std::int32_t last_word,
                             std::uint32_t visited) {
    bits_ = start_bits;
    word_ = last_word;
    visited_ = visited;
  }
  // Goes on to the next key tile, whose number it returns. There must be one.
  TILEWISE_INLINE std::int32_t next(const BlockMaskWord* words, std::int32_t start_key) {
    std::int32_t key;
    do {
      while (visited_ == 0) {
        word_ = words[word_].next;
        visited_ = words[word_].visited;
      }
      const std::int32_t bit = last_bit(visited_);
      visited_ ^= 1u << bit;
      key = word_ * kTilesOfWord + bit;
    } while (key == start_key);
    bits_ = bits_of(words[word_], key % kTilesOfWord);
    return key;
  }
  // KeyTile::bits of the key tile.
  TILEWISE_INLINE std::int32_t bits() const { return bits_; }

 private:
  std::uint32_t visited_ = 0;  // tiles of the word that are left
  std::int32_t word_ = 0;
  std::int32_t bits_ = kHiddenTile;
};

}  // namespace tilewise::cuda::tile
