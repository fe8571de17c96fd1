// Which block computes what, in which order. Plain functions of host and device: tests count on the
// host that every tile of work is visited once.
#pragma once

#include "cuda/tile/fast_divmod.h"
#include "cuda/tile/window_band.h"
#include "math/integer.h"

namespace tilewise::cuda::tile {

// All of a launch's work is numbered in 32 bits, with room for some more turns of all blocks:
// 64-bit divisions are many instructions and registers, of which the describer has few.
inline constexpr std::int64_t kMaxTiles = std::int64_t{1} << 30;

// A tile of queries of one head of one sequence.
struct TileCoord {
  std::int32_t batch;
  std::int32_t head;
  std::int32_t q_tile;
};

// Dense batches: the same number of tiles in every sequence.
//
// Under a causal mask the tiles with many keys come first, the short ones fill the gaps at the end;
// but only within a swizzle of heads whose K and V fit L2 batched. Without one, the tiles of a
// head follow each other: pair_loads share its K and V in L2.
struct Schedule {
  std::int32_t q_tiles;  // of a sequence
  std::int32_t heads;
  std::int32_t batch;
  std::int32_t swizzle;  // heads of all sequences that are in flight batched; 0: tiles in order
  std::int32_t swizzle_groups;  // of them; the last one has all heads that are left

  TILEWISE_INLINE std::int32_t count() const { return q_tiles * heads * batch; }

  // Where tiles are in order: the number of the first one of a head.
  TILEWISE_INLINE std::int32_t first(std::int32_t of_batch, std::int32_t head) const {
    return (of_batch * heads + head) * q_tiles;
  }

  TILEWISE_INLINE std::int32_t last_swizzle() const {
    return heads * batch - (swizzle_groups - 1) * swizzle;
  }

  TILEWISE_INLINE TileCoord tile_coord(std::int32_t index) const {
    return tile_coord(index, q_tiles, swizzle * q_tiles, swizzle, last_swizzle(), heads);
  }

  // The same by divisors that are given: numbers, or prepared ones.
  template <class D>
  TILEWISE_INLINE TileCoord tile_coord(std::int32_t index, const D& by_tiles,
                                       const D& by_swizzle_tiles, const D& by_swizzle,
                                       const D& by_last_swizzle, const D& by_heads) const {
    std::int32_t row = index / by_tiles;  // (batch, head)
    std::int32_t tile = index % by_tiles;
    if (swizzle > 0) {
      const std::int32_t at = math::min(index / by_swizzle_tiles, swizzle_groups - 1);
      const std::int32_t first = at * swizzle;
      const std::int32_t inside = index - first * q_tiles;
      const D by_wide = at == swizzle_groups - 1 ? by_last_swizzle : by_swizzle;
      row = first + inside % by_wide;
      tile = q_tiles - 1 - inside / by_wide;
    }
    return {row / by_heads, row % by_heads, tile};
  }
};

// A schedule of at least one tile of queries, with its divisions prepared. Made on the host.
class FastSchedule {
 public:
  FastSchedule() = default;
  explicit FastSchedule(const Schedule& schedule)
      : schedule_(schedule), by_tiles_(schedule.q_tiles), by_heads_(schedule.heads) {
    if (schedule.swizzle == 0) return;
    by_swizzle_tiles_ = FastDivmod(schedule.swizzle * schedule.q_tiles);
    by_swizzle_ = FastDivmod(schedule.swizzle);
    by_last_swizzle_ = FastDivmod(schedule.last_swizzle());
  }

  TILEWISE_INLINE std::int32_t count() const { return schedule_.count(); }
  TILEWISE_INLINE TileCoord tile_coord(std::int32_t index) const {
    return schedule_.tile_coord(index, by_tiles_, by_swizzle_tiles_, by_swizzle_, by_last_swizzle_,
                                by_heads_);
  }

 private:
  Schedule schedule_ = {};
  FastDivmod by_tiles_, by_swizzle_tiles_, by_swizzle_, by_last_swizzle_, by_heads_;
};

// The same schedule in smaller swizzle_groups, of about a tile for every other one of `blocks`. A
// large swizzle begins with tiles whose K and V nobody has read, and goes on with such that read
// nothing new: between small ones the demand for memory is even. The last swizzle stays large: in
// its order the blocks end batched. So does all of it where a head's tiles are a round by
// themselves: under a window, 0.3 to 0.7 % at S 16384. group: query heads of a head of keys, which
// stay in one swizzle.
TILEWISE_INLINE Schedule with_small_swizzle(Schedule schedule, std::int32_t blocks,
                                            std::int32_t group) {
  constexpr std::int32_t kLastRounds = 6;
  if (schedule.swizzle == 0 || schedule.q_tiles == 0) return schedule;
  const std::int32_t heads = math::ceil_div(blocks / 2, schedule.q_tiles);
  const std::int32_t round = math::round_up(heads, group);
  if (round >= schedule.swizzle) return schedule;
  const std::int32_t most = heads == 1 ? schedule.swizzle : kLastRounds;
  const std::int32_t last = math::min(most, schedule.swizzle / round);  // rounds
  const std::int32_t rounds = schedule.heads * schedule.batch / round;
  schedule.swizzle = round;
  schedule.swizzle_groups = rounds > last ? rounds - last + 1 : 1;
  return schedule;
}

// Number of the work of a block in its turn `turn`: forwards and backwards over the blocks in
// turns, so that whoever had the longest of one turn has the shortest of the next.
TILEWISE_INLINE std::int32_t static_tile(std::int32_t block, std::int32_t blocks,
                                         std::int32_t turn) {
  return turn * blocks + (turn % 2 == 0 ? block : blocks - 1 - block);
}

// So many tiles of queries may be described at once (sm90/describer.cuh), of so many tiles of keys
// at least.
inline constexpr std::int32_t kMaxBatchedTiles = 4;
inline constexpr std::int32_t kLeastKeys = 4;

// The turns of the blocks that are count out beforehand (static_tile); others ask a counter.
struct StaticRounds {
  std::int32_t count = 2;    // turns, the least of them
  std::int32_t batched = 0;  // of them those whose tiles may be described at once

  // Tiles that are described at once, of which that of turn `turn` is the first.
  TILEWISE_INLINE std::int32_t batched_tiles(std::int32_t turn) const {
    return turn + kMaxBatchedTiles <= batched ? kMaxBatchedTiles : 1;
  }
};

// Nothing is counted; every tile has so many tiles of keys, at least.
TILEWISE_INLINE StaticRounds all_rounds_static(std::int64_t keys) {
  constexpr std::int32_t kAllTurns = std::int32_t{1} << 30;
  return {kAllTurns, keys >= kLeastKeys ? kAllTurns : 0};
}

// Under a window of `left` keys before the own one, where there are as many keys as queries: the
// tiles that see all of it come first and are alike, if all heads are one swizzle. The last turns
// are counted, and with them all short tiles.
TILEWISE_INLINE StaticRounds static_window_rounds(const Schedule& schedule, std::int32_t q_tile,
                                                  std::int32_t k_tile, std::int64_t left,
                                                  std::int32_t blocks) {
  constexpr std::int64_t kCounted = 3;
  StaticRounds static_rounds;
  if (schedule.swizzle_groups != 1) return static_rounds;
  const std::int64_t shorter = math::ceil_div(left, q_tile);  // tiles of a head
  const std::int64_t alike =
      (schedule.q_tiles - shorter) * std::int64_t{schedule.heads} * schedule.batch;
  const std::int64_t counted = math::ceil_div(schedule.count(), blocks) - kCounted;
  const std::int64_t count = alike / blocks < counted ? alike / blocks : counted;
  if (count > static_rounds.count) static_rounds.count = static_cast<std::int32_t>(count);
  if (left / k_tile >= kLeastKeys && alike >= std::int64_t{static_rounds.count} * blocks)
    static_rounds.batched = static_rounds.count;
  return static_rounds;
}

// Packed batches: tile_starts (B + 1) counts the q tiles of the sequences before each one.
struct PackedSchedule {
  const std::int32_t* tile_starts;
  std::int32_t heads;
  std::int32_t batch;
  bool longest_first;

  TILEWISE_INLINE std::int32_t count() const { return batch > 0 ? tile_starts[batch] * heads : 0; }

  // Not with the longest first: the number of the first tile of a head.
  TILEWISE_INLINE std::int32_t first(std::int32_t of_batch, std::int32_t head) const {
    const std::int32_t start = tile_starts[of_batch];
    return start * heads + head * (tile_starts[of_batch + 1] - start);
  }

  TILEWISE_INLINE TileCoord tile_coord(std::int32_t index) const {
    std::int32_t first = 0;
    std::int32_t last = batch - 1;
    while (first < last) {  // the last sequence that starts at or before the index
      const std::int32_t middle = (first + last + 1) / 2;
      if (tile_starts[middle] * heads <= index) {
        first = middle;
      } else {
        last = middle - 1;
      }
    }
    const std::int32_t tiles = tile_starts[first + 1] - tile_starts[first];
    const std::int32_t inside = index - tile_starts[first] * heads;
    if (longest_first) return {first, inside % heads, tiles - 1 - inside / heads};
    return {first, inside / tiles, inside % tiles};
  }
};

// Tiles of keys [begin, end) that some row of a q tile sees.
struct TileRange {
  std::int32_t begin;
  std::int32_t end;
};
TILEWISE_INLINE TileRange key_tiles(const WindowBand& edges, std::int32_t first_row,
                                    std::int32_t last_row, std::int32_t k_tile) {
  const std::int32_t begin = edges.begin(first_row);
  const std::int32_t end = edges.end(last_row);
  if (begin >= end || first_row > last_row) return {0, 0};
  return {begin / k_tile, math::ceil_div(end, k_tile)};
}

// Tiles of keys of which all rows of a q tile see all.
TILEWISE_INLINE TileRange full_key_tiles(const WindowBand& edges, std::int32_t first_row,
                                         std::int32_t last_row, std::int32_t k_tile) {
  const std::int32_t end = edges.end(first_row);
  return {math::ceil_div(edges.begin(last_row), k_tile), end > 0 ? end / k_tile : 0};
}

// Whether the first and the last of the tiles of keys of a q tile are cut along the same diagonal,
// and every row sees those of the last one that it does not see of the first; besides, in such
// halves that a warpgroup's 64 rows are cut in one of each (sm90/fold.cuh). k_tile: rows of the
// tile, too.
TILEWISE_INLINE bool has_fused_edges(const WindowBand& edges, std::int32_t row,
                                     const TileRange& keys, std::int32_t k_tile) {
  if (edges.lower_slope != 1 || edges.upper_slope != 1 || keys.end - keys.begin < 3) return false;
  const std::int32_t end = row + edges.upper_offset;
  const std::int32_t hidden = row + edges.lower_offset - keys.begin * k_tile;
  const std::int32_t seen = end - (keys.end - 1) * k_tile;
  return hidden == seen && (hidden == 0 || hidden == 1) && end + k_tile - 1 <= edges.key_end;
}

// The tile of keys that a q tile begins with, of those up to `end`: a full one, if there is one.
// The first scores of a q tile take longest, and a cut tile would be more; and blocks that begin at
// the same time begin with the same keys where their q tiles are pair_loads: a number of tiles is
// rounded down, to as much as stays within the full ones.
TILEWISE_INLINE std::int32_t start_key(const TileRange& full, std::int32_t end) {
  const std::int32_t last = math::min(full.end, end) - 1;
  const std::int32_t count = last + 1 - full.begin;
  if (count <= 0) return end - 1;
  const std::int32_t step = count >= 8 ? 8 : count >= 4 ? 4 : count >= 2 ? 2 : 1;
  return last & -step;
}
// The one that comes behind another: downwards to the first, then from the end on to what is left.
TILEWISE_INLINE std::int32_t next_key_tile(std::int32_t key, std::int32_t first, std::int32_t end) {
  return key > first ? key - 1 : end - 1;
}

}  // namespace tilewise::cuda::tile
