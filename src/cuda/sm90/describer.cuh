// The describer: a thread that finds the work of a block and tells the producer and the consumers
// what each tile of queries is, while the tiles before it are copied and computed. It takes a
// microsecond or two, for divisions and the counter's answer, in which the producer would refill no
// stage; and some 500 cycles of the consumers, beside which it runs (D 128). Where the next tiles
// are known, four lanes describe four of them at once, for the cycles of one.
#pragma once

#include "cuda/ptx/order.cuh"
#include "cuda/sm90/sequences.cuh"
#include "cuda/sm90/shared.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/score.cuh"
#include "math/integer.h"

namespace tilewise::cuda::sm90 {

// The work of a block, of `count`: tiles of queries that are dealt out beforehand, two at least,
// then what the counter says, which the first block has opened meanwhile. Each block asks until
// there is none, in all as often as there is work behind the last turn but one that is dealt out.
class Walk {
 public:
  // Once, before it is asked.
  __device__ __forceinline__ void begin(std::int32_t count) { count_ = count; }

  // The first block opens the counter, once its own first tile has left it the time: nobody reads
  // it before the third turn.
  __device__ __forceinline__ void open(const Parameters& parameters) const {
    Counter* const counter = parameters.counter;
    if (counter == nullptr || asked_for(parameters) <= 0 || blockIdx.x != 0) return;
    counter->taken = 0;
    ptx::store_release(&counter->launch, parameters.launch);
  }

  // Of a turn; count or more: there is none. Behind those that are dealt out, turn by turn.
  __device__ __forceinline__ std::int32_t index(const Parameters& parameters,
                                                std::int32_t turn) const {
    const std::int32_t dealt = parameters.finding.dealing.dealt;
    if (turn < dealt) return dealt_index(turn);
    Counter* const counter = parameters.counter;
    if (turn == dealt) {
      while (ptx::load_acquire(&counter->launch) != parameters.launch) {
      }
    }
    const std::int32_t taken = static_cast<std::int32_t>(atomicAdd(&counter->taken, 1u));
    if (taken + 1 == asked_for(parameters)) counter->launch = 0;
    return dealt * static_cast<std::int32_t>(gridDim.x) + taken;
  }

  __device__ __forceinline__ bool holds(std::int32_t index) const { return index < count_; }
  // Of a turn that is dealt out there is work.
  __device__ __forceinline__ bool has(std::int32_t turn) const { return holds(dealt_index(turn)); }

 private:
  __device__ __forceinline__ static std::int32_t dealt_index(std::int32_t turn) {
    return tile::static_index(static_cast<std::int32_t>(blockIdx.x),
                              static_cast<std::int32_t>(gridDim.x), turn);
  }
  __device__ __forceinline__ std::int32_t asked_for(const Parameters& parameters) const {
    return count_ - (parameters.finding.dealing.dealt - 1) * static_cast<std::int32_t>(gridDim.x);
  }

  std::int32_t count_ = 0;
};

// Finds a tile, and writes down where the others will read it what the producer needs and what lies
// at hand: the describer has few registers.
template <KernelConfig kConfig>
__device__ __forceinline__ void locate(const Finding& finding, const Sequences& sequences,
                                       std::int32_t index, Tile& tile) {
  const Work work = finding.work(index, sequences);
  const std::int32_t row = work.q_tile * kConfig.q_tile;
  tile.index = index;
  tile.batch = work.batch;
  tile.head = work.head;
  tile.kv_head = work.head / finding.group;
  tile.row = row;
  const Lengths lengths = finding.lengths(work.batch, sequences);
  tile.q_start = lengths.q_start;
  tile.q_len = lengths.q_len;
  tile.k_start = lengths.k_start;
  tile.diagonal = finding.top_left ? 0 : lengths.k_len - lengths.q_len;
  const tile::Edges edges =
      tile::window_edges(lengths.k_len, tile.diagonal, finding.window_left, finding.window_right);
  tile.edges = edges;
  const std::int32_t last = math::min(row + kConfig.q_tile, lengths.q_len) - 1;
  const tile::TileRange keys = tile::key_tiles(edges, row, last, kConfig.k_tile);
  const bool none = keys.begin >= keys.end;
  tile.seen = none ? Seen::kNothing : Seen::kSome;
  tile.first_key = none ? 0 : keys.begin;
  tile.end_key = none ? 1 : keys.end;
  tile.start_key = tile.end_key - 1;
  if constexpr (kConfig.begins_full()) {
    const tile::TileRange full = tile::full_key_tiles(edges, row, last, kConfig.k_tile);
    tile.start_key = tile::start_key(full, tile.end_key);
  }
  tile.used = kConfig.k_tile;
  if (finding.open_end) tile.used = lengths.k_len - (keys.end - 1) * kConfig.k_tile;
  if (none) tile.used = 0;
  if constexpr (kConfig.folds) {
    if (tile.used == kConfig.k_tile && tile::is_folded(edges, row, keys, kConfig.k_tile)) {
      tile.seen = Seen::kFolded;
      ++tile.first_key;
      --tile.end_key;
    }
  }
}

// The rest of what the consumers need.
template <KernelConfig kConfig>
__device__ __forceinline__ void complete(const Parameters& parameters, Tile& tile) {
  const problem::Problem& problem = parameters.problem;
  const std::int32_t row = tile.row;
  const std::int64_t place = std::int64_t{tile.q_start} + row;
  const std::int64_t batch = problem.q_packed ? 0 : tile.batch;
  tile.out = static_cast<char*>(problem.out.data) +
             problem.out.offset(batch, tile.head, place) * parameters.out_bytes;
  tile.lse = nullptr;
  if (problem.lse.present()) {
    tile.lse = static_cast<char*>(problem.lse.data) +
               problem.lse.offset(batch, tile.head, place) * std::int64_t{sizeof(float)};
  }
  tile.sink = -math::Limits<float>::kInfinity;
  if (problem.sink.present()) {
    const std::int64_t at = problem.sink.offset(0, tile.head, 0);
    tile.sink = static_cast<const float*>(problem.sink.data)[at];
  }
  if constexpr (kConfig.general) tile.slope = tile::slope_of(problem, tile.batch, tile.head);
  const tile::Edges edges = tile.edges;
#pragma unroll 1
  for (int warpgroup = 0; warpgroup < kConfig.warpgroups(); ++warpgroup) {
    const std::int32_t first = row + warpgroup * tile::kRows;
    const std::int32_t last = math::min(first + tile::kRows, tile.q_len) - 1;
    tile.ends_high[warpgroup] =
        tile.end_key - tile.first_key > 1 &&
        edges.begin(first) >= tile.first_key * kConfig.k_tile + kConfig.k_tile / 2;
    const tile::TileRange full = tile::full_key_tiles(edges, first, last, kConfig.k_tile);
    tile.full_begin[warpgroup] = full.begin;
    tile.full_end[warpgroup] = full.end;
  }
}

// All tiles of the block, and behind them one that is none. By the first lanes of a warp.
template <KernelConfig kConfig>
class Describer {
 public:
  __device__ Describer(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters), shared_(shared) {}

  // Where the first one is, while the block's barriers are made: nobody is told, and its keys are
  // asked for before it is complete. Behind what lists the sequences, where they are listed.
  __device__ __forceinline__ void begin() {
    walk_.begin(count());
    find(0, walk_.index(parameters_, 0));
  }

  // Says that the first one is there; the others when the producer wants them.
  __device__ __forceinline__ void run() {
    const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x % 32);
    if (lane == 0) {
      tell(0);
      walk_.open(parameters_);
    } else {
      walk_.begin(count());
    }
    Place<1> place;
    bool more = walk_.has(0);
    std::int32_t turn = 1;
#pragma unroll 1
    while (more) {
      const std::int32_t tiles = parameters_.finding.dealing.at_once(turn);
      if (lane >= tiles) return;
      ptx::wait(ptx::shared_address(&shared_.barriers.tile_wanted), place.parity);
      place.advance();
      const bool found = find(turn + lane, walk_.index(parameters_, turn + lane));
      tell(turn + lane);
      turn += tiles;
      more = tiles > 1 ? walk_.has(turn - 1) : found;
    }
  }

 private:
  __device__ __forceinline__ Sequences sequences() const {
    return sequences_of(parameters_.finding, shared_.sequences);
  }
  __device__ __forceinline__ std::int32_t count() const {
    return parameters_.finding.count(sequences());
  }
  __device__ __forceinline__ Tile& tile(std::int32_t turn) const {
    return shared_.tiles[turn % kTileSlots];
  }
  // false: there is none.
  __device__ __forceinline__ bool find(std::int32_t turn, std::int32_t index) {
    const bool found = walk_.holds(index);
    if (found) {
      locate<kConfig>(parameters_.finding, sequences(), index, tile(turn));
    } else {
      tile(turn).index = -1;
    }
    return found;
  }
  __device__ __forceinline__ void tell(std::int32_t turn) {
    if (tile(turn).index >= 0) complete<kConfig>(parameters_, tile(turn));
    ptx::arrive(ptx::shared_address(&shared_.barriers.tile_full[turn % kTileSlots]));
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  Walk walk_;
};

}  // namespace tilewise::cuda::sm90
