// The describer: one thread that finds the work of a block and tells the producer and the consumers
// what each tile of queries is, while the tiles before it are copied and computed. It takes a
// microsecond or two, for divisions and the counter's answer, in which the producer would refill no
// stage.
#pragma once

#include "cuda/ptx/order.cuh"
#include "cuda/sm90/sequences.cuh"
#include "cuda/sm90/shared.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/score.cuh"

namespace tilewise::cuda::sm90 {

// The work of a block, of `count`: two tiles of queries that are dealt out beforehand, then what
// the counter says, which the first block has opened meanwhile. Each block asks until there is
// none, in all as often as there is work behind the first turn.
class Walk {
 public:
  // Once, before it is asked.
  __device__ __forceinline__ void begin(std::int32_t count) { count_ = count; }

  // The first block opens the counter, once its own first tile has left it the time: nobody reads
  // it before the third turn.
  __device__ __forceinline__ void open(const Parameters& parameters) const {
    Counter* const counter = parameters.counter;
    const bool counts = counter != nullptr && count_ > static_cast<std::int32_t>(gridDim.x);
    if (!counts || blockIdx.x != 0) return;
    counter->taken = 0;
    ptx::store_release(&counter->launch, parameters.launch);
  }

  // Of the next turn; count or more: there is none.
  __device__ __forceinline__ std::int32_t next(const Parameters& parameters) {
    const std::int32_t blocks = static_cast<std::int32_t>(gridDim.x);
    Counter* const counter = parameters.counter;
    if (turn_ < kDealt || counter == nullptr)
      return tile::static_index(static_cast<std::int32_t>(blockIdx.x), blocks, turn_++);
    if (turn_ == kDealt) {
      ++turn_;
      while (ptx::load_acquire(&counter->launch) != parameters.launch) {
      }
    }
    const std::int32_t taken = static_cast<std::int32_t>(atomicAdd(&counter->taken, 1u));
    if (taken + 1 == count_ - blocks) counter->launch = 0;
    return kDealt * blocks + taken;
  }

 private:
  static constexpr std::int32_t kDealt = 2;
  std::int32_t count_ = 0;
  std::int32_t turn_ = 0;
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
  const std::int32_t last = tile::lesser(row + kConfig.q_tile, lengths.q_len) - 1;
  const tile::TileRange keys = tile::key_tiles(edges, row, last, kConfig.k_tile);
  tile.empty = keys.begin >= keys.end;
  tile.first_key = tile.empty ? 0 : keys.begin;
  tile.end_key = tile.empty ? 1 : keys.end;
  tile.start_key = tile.end_key - 1;
  if constexpr (kConfig.begins_full()) {
    const tile::TileRange full = tile::full_key_tiles(edges, row, last, kConfig.k_tile);
    tile.start_key = tile::start_key(full, tile.end_key);
  }
  tile.used = kConfig.k_tile;
  if (finding.open_end) tile.used = lengths.k_len - (keys.end - 1) * kConfig.k_tile;
  if (tile.empty) tile.used = 0;
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
    const std::int32_t last = tile::lesser(first + tile::kRows, tile.q_len) - 1;
    tile.ends_high[warpgroup] =
        tile.end_key - tile.first_key > 1 &&
        edges.begin(first) >= tile.first_key * kConfig.k_tile + kConfig.k_tile / 2;
    const tile::TileRange full = tile::full_key_tiles(edges, first, last, kConfig.k_tile);
    tile.full_begin[warpgroup] = full.begin;
    tile.full_end[warpgroup] = full.end;
  }
}

// All tiles of the block, and behind them one that is none.
template <KernelConfig kConfig>
class Describer {
 public:
  __device__ Describer(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters), shared_(shared) {}

  // Where the first one is, while the block's barriers are made: nobody is told, and its keys are
  // asked for before it is complete. Behind what lists the sequences, where they are listed.
  __device__ __forceinline__ void begin() {
    count_ = parameters_.finding.count(sequences());
    walk_.begin(count_);
    locate_next();
  }

  // Says that the first one is there; the others each when the producer wants it.
  __device__ __forceinline__ void run() {
    Place<1> place;
    complete_it();
    walk_.open(parameters_);
#pragma unroll 1
    while (more_) {
      ptx::wait(ptx::shared_address(&shared_.barriers.tile_wanted), place.parity);
      place.advance();
      locate_next();
      complete_it();
    }
  }

 private:
  __device__ __forceinline__ Sequences sequences() const {
    return sequences_of(parameters_.finding, shared_.sequences);
  }
  __device__ __forceinline__ Tile& tile() const { return shared_.tiles[tiles_ % kTileSlots]; }
  __device__ __forceinline__ void locate_next() {
    const std::int32_t index = walk_.next(parameters_);
    more_ = index < count_;
    if (more_) {
      locate<kConfig>(parameters_.finding, sequences(), index, tile());
    } else {
      tile().index = -1;
    }
  }
  __device__ __forceinline__ void complete_it() {
    if (more_) complete<kConfig>(parameters_, tile());
    ptx::arrive(ptx::shared_address(&shared_.barriers.tile_full[tiles_++ % kTileSlots]));
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  std::int32_t count_ = 0;
  Walk walk_;
  std::uint32_t tiles_ = 0;  // described
  bool more_ = true;
};

}  // namespace tilewise::cuda::sm90
