// The tile scheduler: which block computes which query tile, in which order, and which key tiles a
// query tile visits. These are plain functions of host and device, so that tests can check on the
// host that every tile is visited once.
#pragma once

#include "cuda/tile/fast_divmod.h"
#include "cuda/tile/window_band.h"
#include "math/integer.h"

namespace tilewise::cuda::tile {

// The most query tiles of a launch. Indices of tiles have 32 bits, with room for some more rounds
// of all blocks: a 64-bit division takes many instructions and registers, and the scheduler warp
// has few registers.
inline constexpr std::int64_t kMaxTiles = std::int64_t{1} << 30;

// A query tile of one head of one sequence.
struct TileCoord {
  std::int32_t batch;
  std::int32_t head;
  std::int32_t q_tile;
};

// The schedule of a dense batch, whose sequences have equally many query tiles.
//
// Under a causal mask the longest tiles come first, so that short ones even out the end of the
// launch. This order holds within a group of `swizzle` heads whose K and V fit L2 together (head
// swizzle); one group follows the other. Without head swizzle the tiles of a head follow each
// other, and neighbours share its K and V in L2.
struct Schedule {
  std::int32_t q_tiles;  // of a sequence
  std::int32_t heads;
  std::int32_t batch;
  std::int32_t swizzle;         // heads, of all sequences, in a swizzle group; 0: no head swizzle
  std::int32_t swizzle_groups;  // the last one has all heads that are left

  TILEWISE_INLINE std::int32_t count() const { return q_tiles * heads * batch; }

  // Returns the index of the first tile of a head, without head swizzle.
  TILEWISE_INLINE std::int32_t first(std::int32_t of_batch, std::int32_t head) const {
    return (of_batch * heads + head) * q_tiles;
  }

  // Returns the number of heads in the last swizzle group.
  TILEWISE_INLINE std::int32_t last_swizzle() const {
    return heads * batch - (swizzle_groups - 1) * swizzle;
  }

  TILEWISE_INLINE TileCoord tile_coord(std::int32_t index) const {
    return tile_coord(index, q_tiles, swizzle * q_tiles, swizzle, last_swizzle(), heads);
  }

  // tile_coord() takes its divisors as arguments, which are numbers or FastDivmod.
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

// A schedule of at least one query tile with its divisions prepared. It is made on the host.
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

// Returns the schedule with smaller swizzle groups, of about one tile for every two of `blocks`
// blocks. A large group begins with tiles whose K and V are not in L2 and goes on with tiles that
// read nothing new; small groups keep the demand for memory even. The last group stays large, since
// its order lets the blocks end at the same time: it has the tiles of kLastGroups small groups, or
// as many heads as before if one head fills a small group (0.3 to 0.7 % under a window at S 16384).
// group: query heads per key/value head, which stay in one swizzle group.
TILEWISE_INLINE Schedule with_small_swizzle(Schedule schedule, std::int32_t blocks,
                                            std::int32_t group) {
  constexpr std::int32_t kLastGroups = 6;
  if (schedule.swizzle == 0 || schedule.q_tiles == 0) return schedule;
  const std::int32_t heads = math::ceil_div(blocks / 2, schedule.q_tiles);
  const std::int32_t swizzle = math::round_up(heads, group);
  if (swizzle >= schedule.swizzle) return schedule;
  const std::int32_t most = heads == 1 ? schedule.swizzle : kLastGroups;
  const std::int32_t last = math::min(most, schedule.swizzle / swizzle);  // of the small groups
  const std::int32_t groups = schedule.heads * schedule.batch / swizzle;
  schedule.swizzle = swizzle;
  schedule.swizzle_groups = groups > last ? groups - last + 1 : 1;
  return schedule;
}

// Returns the index of the tile that a block computes in a static round. The rounds go over the
// blocks forwards and backwards alternately, so that the block with the longest tile of one round
// has the shortest tile of the next.
TILEWISE_INLINE std::int32_t static_tile(std::int32_t block, std::int32_t blocks,
                                         std::int32_t round) {
  return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
}

// The scheduler warp publishes at most kMaxBatchedTiles query tiles at once
// (forward/sm90/scheduler_warp.cuh), provided that each has at least kMinBatchedKeyTiles key tiles.
inline constexpr std::int32_t kMaxBatchedTiles = 4;
inline constexpr std::int32_t kMinBatchedKeyTiles = 4;

// The number of rounds of the blocks that are scheduled statically (static_tile()). In the rounds
// after them a block takes its next tile from a counter.
struct StaticRounds {
  std::int32_t count = 2;    // static rounds; 2 is the least
  std::int32_t batched = 0;  // the first of them, whose tiles may be published at once

  // Returns how many tiles are published at once, from that of `round` on.
  TILEWISE_INLINE std::int32_t batched_tiles(std::int32_t round) const {
    return round + kMaxBatchedTiles <= batched ? kMaxBatchedTiles : 1;
  }
};

// All rounds are static. Every query tile has at least `key_tiles` key tiles.
TILEWISE_INLINE StaticRounds all_rounds_static(std::int64_t key_tiles) {
  constexpr std::int32_t kAllRounds = std::int32_t{1} << 30;
  return {kAllRounds, key_tiles >= kMinBatchedKeyTiles ? kAllRounds : 0};
}

// Returns the static rounds under a window of `left` keys before a row's own key, for as many keys
// as queries. If all heads are one swizzle group, the tiles that see the whole window come first
// and take equally long, and their rounds are static. The last rounds are dynamic; they contain all
// shorter tiles.
TILEWISE_INLINE StaticRounds static_window_rounds(const Schedule& schedule, std::int32_t q_tile,
                                                  std::int32_t k_tile, std::int64_t left,
                                                  std::int32_t blocks) {
  constexpr std::int64_t kDynamicRounds = 3;  // at least
  StaticRounds static_rounds;
  if (schedule.swizzle_groups != 1) return static_rounds;
  const std::int64_t shorter = math::ceil_div(left, q_tile);  // tiles of a head
  const std::int64_t equal =
      (schedule.q_tiles - shorter) * std::int64_t{schedule.heads} * schedule.batch;
  const std::int64_t most = math::ceil_div(schedule.count(), blocks) - kDynamicRounds;
  const std::int64_t count = math::min(equal / blocks, most);
  if (count > static_rounds.count) static_rounds.count = static_cast<std::int32_t>(count);
  if (left / k_tile >= kMinBatchedKeyTiles && equal >= std::int64_t{static_rounds.count} * blocks)
    static_rounds.batched = static_rounds.count;
  return static_rounds;
}

// The schedule of a packed batch. tile_starts (B + 1): the number of query tiles of one head in all
// sequences before each one.
struct PackedSchedule {
  const std::int32_t* tile_starts;
  std::int32_t heads;
  std::int32_t batch;
  bool longest_first;

  TILEWISE_INLINE std::int32_t count() const { return batch > 0 ? tile_starts[batch] * heads : 0; }

  // Returns the index of the first tile of a head, unless longest_first.
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

// The key tiles [begin, end).
struct TileRange {
  std::int32_t begin;
  std::int32_t end;
};

// Returns the key tiles of which some row of a query tile sees a key.
TILEWISE_INLINE TileRange key_tiles(const WindowBand& band, std::int32_t first_row,
                                    std::int32_t last_row, std::int32_t k_tile) {
  const std::int32_t begin = band.begin(first_row);
  const std::int32_t end = band.end(last_row);
  if (begin >= end || first_row > last_row) return {0, 0};
  return {begin / k_tile, math::ceil_div(end, k_tile)};
}

// Returns the key tiles of which every row of a query tile sees every key.
TILEWISE_INLINE TileRange full_key_tiles(const WindowBand& band, std::int32_t first_row,
                                         std::int32_t last_row, std::int32_t k_tile) {
  const std::int32_t end = band.end(first_row);
  return {math::ceil_div(band.begin(last_row), k_tile), end > 0 ? end / k_tile : 0};
}

// Says whether the first and the last key tile of a query tile are cut along the same diagonal, so
// that every row sees of the last one exactly the columns that it does not see of the first one. Of
// each of the two, the 64 rows of a warpgroup must cut one half only
// (forward/sm90/fused_edges.cuh). The query tile has k_tile rows, too.
TILEWISE_INLINE bool has_fused_edges(const WindowBand& band, std::int32_t row,
                                     const TileRange& keys, std::int32_t k_tile) {
  if (band.lower_slope != 1 || band.upper_slope != 1 || keys.end - keys.begin < 3) return false;
  const std::int32_t end = row + band.upper_offset;
  const std::int32_t hidden = row + band.lower_offset - keys.begin * k_tile;
  const std::int32_t seen = end - (keys.end - 1) * k_tile;
  return hidden == seen && (hidden == 0 || hidden == 1) && end + k_tile - 1 <= band.key_end;
}

// Returns the key tile that a query tile begins with, among those before `end`: a full one, if
// there is one. The first scores of a query tile take longest, and the mask of a cut tile would add
// to them. The index is rounded down to a multiple of 8, 4 or 2, as far as it stays among the full
// tiles: blocks that compute neighbouring query tiles at the same time then begin with the same
// keys.
TILEWISE_INLINE std::int32_t start_key(const TileRange& full, std::int32_t end) {
  const std::int32_t last = math::min(full.end, end) - 1;
  const std::int32_t count = last + 1 - full.begin;
  if (count <= 0) return end - 1;
  const std::int32_t step = count >= 8 ? 8 : count >= 4 ? 4 : count >= 2 ? 2 : 1;
  return last & -step;
}

// Returns the key tile that follows `key`: downwards to `first`, then from the end on down to those
// that are left.
TILEWISE_INLINE std::int32_t next_key_tile(std::int32_t key, std::int32_t first, std::int32_t end) {
  return key > first ? key - 1 : end - 1;
}

}  // namespace tilewise::cuda::tile
