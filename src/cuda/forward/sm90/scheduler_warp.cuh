// The describer: a thread that finds the work of a block and tells the producer and the consumers
// what each tile of queries is, while the tiles before it are copied and computed. It takes a
// microsecond or two, for divisions and the counter's answer, in which the producer would refill no
// stage; and some 500 cycles of the consumers, beside which it runs (D 128). Where the next tiles
// are known, four lanes describe four of them at once, for the cycles of one.
#pragma once

#include "cuda/forward/sm90/sequences.cuh"
#include "cuda/forward/sm90/shared.cuh"
#include "cuda/ptx/memory_order.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/score_mod.cuh"
#include "math/integer.h"

namespace tilewise::cuda::sm90 {

// The work of a block, of `count`: tiles of queries that are dealt out beforehand, two at least,
// then what the counter says, which the first block has opened meanwhile. Each block asks until
// there is none, in all as often as there is work behind the last turn but one that is dealt out.
class WorkQueue {
 public:
  // Once, before it is asked.
  __device__ __forceinline__ void begin(std::int32_t count) { count_ = count; }

  // The first block opens the counter, once its own first tile has left it the time: nobody reads
  // it before the third turn.
  __device__ __forceinline__ void open(const Parameters& parameters) const {
    TileCounter* const counter = parameters.counter;
    if (counter == nullptr || dynamic_requests(parameters) <= 0 || blockIdx.x != 0) return;
    counter->taken = 0;
    ptx::store_release(&counter->launch, parameters.launch);
  }

  // Of a turn; count or more: there is none. Behind those that are dealt out, turn by turn.
  __device__ __forceinline__ std::int32_t index(const Parameters& parameters,
                                                std::int32_t round) const {
    const std::int32_t rounds = parameters.scheduler.static_rounds.count;
    if (round < rounds) return static_index(round);
    TileCounter* const counter = parameters.counter;
    if (round == rounds) {
      while (ptx::load_acquire(&counter->launch) != parameters.launch) {
      }
    }
    const std::int32_t taken = static_cast<std::int32_t>(atomicAdd(&counter->taken, 1u));
    if (taken + 1 == dynamic_requests(parameters)) counter->launch = 0;
    return rounds * static_cast<std::int32_t>(gridDim.x) + taken;
  }

  __device__ __forceinline__ bool holds(std::int32_t index) const { return index < count_; }
  // Of a turn that is dealt out there is work.
  __device__ __forceinline__ bool has(std::int32_t round) const {
    return holds(static_index(round));
  }

 private:
  __device__ __forceinline__ static std::int32_t static_index(std::int32_t round) {
    return tile::static_tile(static_cast<std::int32_t>(blockIdx.x),
                             static_cast<std::int32_t>(gridDim.x), round);
  }
  __device__ __forceinline__ std::int32_t dynamic_requests(const Parameters& parameters) const {
    return count_ -
           (parameters.scheduler.static_rounds.count - 1) * static_cast<std::int32_t>(gridDim.x);
  }

  std::int32_t count_ = 0;
};

// Finds a tile, and writes down where the others will read it what the producer needs and what lies
// at hand: the describer has few registers.
template <KernelConfig kConfig>
__device__ __forceinline__ void locate_tile(const SchedulerParams& scheduler,
                                            const Sequences& sequences, std::int32_t index,
                                            WorkTile& tile) {
  const TileCoord work = scheduler.tile_coord(index, sequences);
  const std::int32_t row = work.q_tile * kConfig.q_tile;
  tile.index = index;
  tile.batch = work.batch;
  tile.head = work.head;
  tile.kv_head = work.head / scheduler.group;
  tile.row = row;
  const SequenceLengths lengths = scheduler.lengths(work.batch, sequences);
  tile.q_start = lengths.q_start;
  tile.q_len = lengths.q_len;
  tile.k_start = lengths.k_start;
  tile.diagonal = scheduler.top_left ? 0 : lengths.k_len - lengths.q_len;
  const tile::WindowBand edges = tile::window_band(lengths.k_len, tile.diagonal,
                                                   scheduler.window_left, scheduler.window_right);
  tile.edges = edges;
  const std::int32_t last = math::min(row + kConfig.q_tile, lengths.q_len) - 1;
  const tile::TileRange keys = tile::key_tiles(edges, row, last, kConfig.k_tile);
  const bool none = keys.begin >= keys.end;
  tile.keys = none ? KeyVisibility::kNone : KeyVisibility::kSome;
  tile.first_key = none ? 0 : keys.begin;
  tile.end_key = none ? 1 : keys.end;
  tile.start_key = tile.end_key - 1;
  if constexpr (kConfig.starts_full()) {
    const tile::TileRange full = tile::full_key_tiles(edges, row, last, kConfig.k_tile);
    tile.start_key = tile::start_key(full, tile.end_key);
  }
  tile.v_rows = kConfig.k_tile;
  if (scheduler.open_end) tile.v_rows = lengths.k_len - (keys.end - 1) * kConfig.k_tile;
  if (none) tile.v_rows = 0;
  if constexpr (kConfig.fused_edges) {
    if (tile.v_rows == kConfig.k_tile && tile::has_fused_edges(edges, row, keys, kConfig.k_tile)) {
      tile.keys = KeyVisibility::kFusedEdges;
      ++tile.first_key;
      --tile.end_key;
    }
  }
}

// The rest of what the consumers need.
template <KernelConfig kConfig>
__device__ __forceinline__ void complete_tile(const Parameters& parameters, WorkTile& tile) {
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
  if constexpr (kConfig.score_mod) tile.slope = tile::slope_of(problem, tile.batch, tile.head);
  const tile::WindowBand edges = tile.edges;
#pragma unroll 1
  for (int warpgroup = 0; warpgroup < kConfig.consumers(); ++warpgroup) {
    const std::int32_t first = row + warpgroup * tile::kRows;
    const std::int32_t last = math::min(first + tile::kRows, tile.q_len) - 1;
    tile.skips_first_half[warpgroup] =
        tile.end_key - tile.first_key > 1 &&
        edges.begin(first) >= tile.first_key * kConfig.k_tile + kConfig.k_tile / 2;
    const tile::TileRange full = tile::full_key_tiles(edges, first, last, kConfig.k_tile);
    tile.full_begin[warpgroup] = full.begin;
    tile.full_end[warpgroup] = full.end;
  }
}

// All tiles of the block, and behind them one that is none. By the first lanes of a warp.
template <KernelConfig kConfig>
class Scheduler {
 public:
  __device__ Scheduler(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters), shared_(shared) {}

  // Where the first one is, while the block's barriers are made: nobody is told, and its keys are
  // asked for before it is complete. Behind what lists the sequences, where they are listed.
  __device__ __forceinline__ void begin() {
    queue_.begin(count());
    find(0, queue_.index(parameters_, 0));
  }

  // Says that the first one is there; the others when the producer wants them.
  __device__ __forceinline__ void run() {
    const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x % 32);
    if (lane == 0) {
      publish(0);
      queue_.open(parameters_);
    } else {
      queue_.begin(count());
    }
    Place<1> place;
    bool more = queue_.has(0);
    std::int32_t round = 1;
#pragma unroll 1
    while (more) {
      const std::int32_t tiles = parameters_.scheduler.static_rounds.batched_tiles(round);
      if (lane >= tiles) return;
      ptx::mbarrier_wait(ptx::shared_address(&shared_.barriers.tile_requested), place.parity);
      place.advance();
      const bool found = find(round + lane, queue_.index(parameters_, round + lane));
      publish(round + lane);
      round += tiles;
      more = tiles > 1 ? queue_.has(round - 1) : found;
    }
  }

 private:
  __device__ __forceinline__ Sequences sequences() const {
    return sequences_of(parameters_.scheduler, shared_.sequences);
  }
  __device__ __forceinline__ std::int32_t count() const {
    return parameters_.scheduler.count(sequences());
  }
  __device__ __forceinline__ WorkTile& tile(std::int32_t round) const {
    return shared_.tiles[round % kTileSlots];
  }
  // false: there is none.
  __device__ __forceinline__ bool find(std::int32_t round, std::int32_t index) {
    const bool found = queue_.holds(index);
    if (found) {
      locate_tile<kConfig>(parameters_.scheduler, sequences(), index, tile(round));
    } else {
      tile(round).index = -1;
    }
    return found;
  }
  __device__ __forceinline__ void publish(std::int32_t round) {
    if (tile(round).index >= 0) complete_tile<kConfig>(parameters_, tile(round));
    ptx::mbarrier_arrive(ptx::shared_address(&shared_.barriers.tile_full[round % kTileSlots]));
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  WorkQueue queue_;
};

}  // namespace tilewise::cuda::sm90
