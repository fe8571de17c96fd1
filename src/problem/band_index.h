// An index of a list of slices. It finds the bands that a tile touches without reading the others:
// a tree of boxes over the bands, which are sorted by their place in the matrix of scores. Building
// it takes n log n steps for n slices (n if they are in order), and a search takes log n steps and
// one for each band that it finds, unless slices cross each other.
#pragma once

#include "problem/arena.h"
#include "problem/problem.h"

namespace tilewise::problem {

struct IndexedBand {
  math::Band band;
  std::int64_t head;  // -1: all
};

// Contains all bands of a part of the index.
struct BandBox {
  math::KeyRange rows;
  math::KeyRange keys;
  math::KeyRange heads;  // begins with -1 if a band belongs to all heads

  // Whether a band in the box may show some of the keys to some of the rows of a head.
  TILEWISE_INLINE bool touches(std::int64_t head, const math::KeyRange& some_rows,
                               const math::KeyRange& some_keys) const {
    return rows.begin < some_rows.end && rows.end > some_rows.begin && keys.begin < some_keys.end &&
           keys.end > some_keys.begin &&
           (heads.begin < 0 || (heads.begin <= head && heads.end > head));
  }
};

struct BandIndex {
  static constexpr std::int64_t kBandsOfLeaf = 8;

  IndexedBand* bands;  // (count): those of the list that show a key to a row
  BandBox* boxes;      // (2 leaves): node 1 is the root, and the children of node n are 2n, 2n + 1
  std::int64_t count;
  std::int64_t leaves;  // a power of two; leaf l, node leaves + l, has the bands from 8 l on

  // Calls f(entry) for some bands, among them all that show some of the keys to some of the rows of
  // the head. f may move the ends of the ranges closer together.
  template <class Function>
  TILEWISE_INLINE void for_each_candidate(std::int64_t head, const math::KeyRange& rows,
                                          const math::KeyRange& keys, Function f) const {
    for (std::int64_t node = 1; node != 0;) {
      const bool touches = boxes[node].touches(head, rows, keys);
      if (touches && node < leaves) {
        node *= 2;
        continue;
      }
      const std::int64_t first = (node - leaves) * kBandsOfLeaf;
      const std::int64_t end = touches ? math::min(first + kBandsOfLeaf, count) : first;
      for (std::int64_t i = first; i < end; ++i) f(bands[i]);
      // The next node in the order of the search is the sibling of this one or of an ancestor.
      node >>= __builtin_ctzll(~static_cast<unsigned long long>(node));
      node += node == 0 ? 0 : 1;
    }
  }
};

// What the searches of a kernel have a narrow range of: the bands are sorted by it.
enum class SearchedBy { kRows, kKeys };

// Takes the memory of an index, nothing without slices.
BandIndex take_band_index(const Problem& problem, Arena& arena);

// Builds the index of the problem's slices. Their contents may be anything, as in sequence.h.
void build_band_index(const Problem& problem, SearchedBy searched, BandIndex& index);

}  // namespace tilewise::problem
