// The scheduler warp: a thread that finds the query tiles of a block and publishes a description of
// each for the producer and the consumers, while the tiles before it are loaded and computed. That
// takes a microsecond or two, for divisions and for reading the counter, in which the producer
// would refill no stage; and some 500 cycles that the consumers would spend, with which it overlaps
// (D 128). Where the next tiles are known in advance, four lanes publish four of them at once, for
// the cycles of one.
#pragma once

#include "cuda/forward/sm90/listed_tiles.cuh"
#include "cuda/forward/sm90/sequences.cuh"
#include "cuda/forward/sm90/shared.cuh"
#include "cuda/ptx/memory_order.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/non_finite.cuh"
#include "cuda/tile/score_mod.cuh"
#include "math/integer.h"

namespace tilewise::cuda::sm90 {

// The work queue of a block. The query tiles of the first rounds, two at least, are scheduled
// statically; those after come from a counter in memory, which the first block has opened by then.
// Each block increments the counter until no tile is left: all blocks together as often as there
// are tiles after the last round but one of the static ones.
class WorkQueue {
 public:
  // count: tiles of the launch. Once, before anything else.
  __device__ __forceinline__ void init(std::int32_t count) { count_ = count; }

  // The first block opens the counter, once its own first tile has left it the time: no block reads
  // it before the third round.
  __device__ __forceinline__ void open_counter(const Parameters& parameters) const {
    TileCounter* const counter = parameters.counter;
    if (counter == nullptr || dynamic_requests(parameters) <= 0 || blockIdx.x != 0) return;
    counter->taken = 0;
    ptx::store_release(&counter->launch, parameters.launch);
  }

  // The block's tile of a round; holds() says whether there is one. After the static rounds, round
  // by round.
  __device__ __forceinline__ std::int32_t index(const Parameters& parameters,
                                                std::int32_t round) const {
    const std::int32_t static_rounds = parameters.scheduler.static_rounds.count;
    if (round < static_rounds) return static_index(round);
    TileCounter* const counter = parameters.counter;
    if (round == static_rounds) {
      while (ptx::load_acquire(&counter->launch) != parameters.launch) {
      }
    }
    const std::int32_t taken = static_cast<std::int32_t>(atomicAdd(&counter->taken, 1u));
    if (taken + 1 == dynamic_requests(parameters)) counter->launch = 0;
    return static_rounds * static_cast<std::int32_t>(gridDim.x) + taken;
  }

  __device__ __forceinline__ bool holds(std::int32_t index) const { return index < count_; }
  // Whether a static round has a tile for the block.
  __device__ __forceinline__ bool has_static(std::int32_t round) const {
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

// Finds the key tiles of a query tile in its list. tile.row is the number that the schedule gives
// it, which begins with the last one: the longest one comes first.
template <KernelConfig kConfig>
__device__ __forceinline__ void list_keys(const tile::BlockMask& mask, bool open_end,
                                          WorkTile& tile) {
  // The barriers keep numbers in memory: the scheduler warp has few registers.
  const auto forget = [] { asm volatile("" ::: "memory"); };
  forget();
  const std::int32_t q_tiles = math::ceil_div(tile.q_len, kConfig.q_tile);
  const std::int32_t first = mask.list_of(tile.batch, tile.head) * mask.q_tiles;
  const tile::BlockMaskRow* const row = mask.order + (first + q_tiles - 1 - tile.row);
  const std::int32_t q_tile = row->q_tile;
  tile.row = q_tile * kConfig.q_tile;
  tile.listed.words = mask.words + (first + q_tile) * mask.word_count;
  forget();
  tile.listed.last_word = row->last_word;
  tile.listed.last_visited = row->last_visited;
  tile.listed.start_bits = row->start_bits;
  tile.start_key = row->start_key;
  tile.keys = row->cut != 0 ? KeyVisibility::kCut : KeyVisibility::kSome;
  forget();
  const std::int32_t count = row->count;
  const std::int32_t k_len = tile.band.key_end;
  tile.listed.count = count;
  tile.first_key = 0;
  tile.end_key = math::ceil_div(k_len, kConfig.k_tile);
  tile.v_rows = open_end ? k_len - (tile.end_key - 1) * kConfig.k_tile : kConfig.k_tile;
  if (count > 0) return;
  tile.keys = KeyVisibility::kNone;
  tile.end_key = 1;
  tile.v_rows = 0;
}

// Finds a query tile and writes what the producer needs of it to shared memory at once: the
// scheduler warp has few registers.
template <KernelConfig kConfig>
__device__ __forceinline__ void locate_tile(const Parameters& parameters,
                                            const Sequences& sequences, std::int32_t index,
                                            WorkTile& tile) {
  const SchedulerParams& scheduler = parameters.scheduler;
  const TileCoord coord = scheduler.tile_coord(index, sequences);
  const SequenceLengths lengths = scheduler.lengths(coord.batch, sequences);
  const std::int32_t row = coord.q_tile * kConfig.q_tile;
  tile.index = index;
  tile.batch = coord.batch;
  tile.head = coord.head;
  tile.kv_head = coord.head / scheduler.group;
  tile.row = row;
  // Early, while there are registers for it. With a block mask sequences are whole.
  if constexpr (!kConfig.block_mask) tile.diagonal = scheduler.diagonal(coord.batch, lengths);
  tile.q_start = lengths.q_start;
  tile.q_len = lengths.q_len;
  tile.k_start = lengths.k_start;
  if constexpr (kConfig.block_mask) {
    tile.diagonal = scheduler.top_left ? 0 : lengths.k_len - lengths.q_len;
    tile.row = coord.q_tile;
    tile.band = tile::window_band(lengths.k_len, tile.diagonal, -1, -1);
    return list_keys<kConfig>(parameters.block_mask, scheduler.open_end, tile);
  }
  const tile::WindowBand band = tile::window_band(lengths.k_len, tile.diagonal,
                                                  scheduler.window_left, scheduler.window_right);
  tile.band = band;
  const std::int32_t last = math::min(row + kConfig.q_tile, lengths.q_len) - 1;
  const tile::TileRange keys = tile::key_tiles(band, row, last, kConfig.k_tile);
  const bool none = keys.begin >= keys.end;
  tile.keys = none ? KeyVisibility::kNone : KeyVisibility::kSome;
  tile.first_key = none ? 0 : keys.begin;
  tile.end_key = none ? 1 : keys.end;
  tile.start_key = tile.end_key - 1;
  if constexpr (kConfig.starts_full()) {
    const tile::TileRange full = tile::full_key_tiles(band, row, last, kConfig.k_tile);
    tile.start_key = tile::start_key(full, tile.end_key);
  }
  tile.v_rows = kConfig.k_tile;
  if (scheduler.open_end) tile.v_rows = lengths.k_len - (keys.end - 1) * kConfig.k_tile;
  if (none) tile.v_rows = 0;
  if constexpr (kConfig.fused_edges) {
    if (tile.v_rows == kConfig.k_tile && tile::has_fused_edges(band, row, keys, kConfig.k_tile)) {
      tile.keys = KeyVisibility::kFusedEdges;
      ++tile.first_key;
      --tile.end_key;
    }
  }
}

// Adds what only the consumers and epilogue warps need.
template <KernelConfig kConfig>
__device__ __forceinline__ void complete_tile(const Parameters& parameters, WorkTile& tile) {
  const problem::Problem& problem = parameters.problem;
  const std::int32_t row = tile.row;
  const std::int64_t token = std::int64_t{tile.q_start} + row;
  const std::int64_t batch = problem.q_packed ? 0 : tile.batch;
  tile.out = static_cast<char*>(problem.out.data) +
             problem.out.offset(batch, tile.head, token) * parameters.out_bytes;
  tile.lse = nullptr;
  if (problem.lse.present()) {
    tile.lse = static_cast<char*>(problem.lse.data) +
               problem.lse.offset(batch, tile.head, token) * std::int64_t{sizeof(float)};
  }
  tile.sink = -math::Limits<float>::kInfinity;
  if (problem.sink.present()) {
    const std::int64_t at = problem.sink.offset(0, tile.head, 0);
    tile.sink = static_cast<const float*>(problem.sink.data)[at];
  }
  if constexpr (kConfig.score_mod) tile.slope = tile::slope_of(problem, tile.batch, tile.head);
  if constexpr (kConfig.block_mask) return;
  const tile::WindowBand band = tile.band;
#pragma unroll 1
  for (int warpgroup = 0; warpgroup < kConfig.consumers(); ++warpgroup) {
    const std::int32_t first = row + warpgroup * tile::kRows;
    const std::int32_t last = math::min(first + tile::kRows, tile.q_len) - 1;
    tile.half_hidden[warpgroup] =
        tile.end_key - tile.first_key > 1 &&
        band.begin(first) >= tile.first_key * kConfig.k_tile + kConfig.k_tile / 2;
    const tile::TileRange full = tile::full_key_tiles(band, first, last, kConfig.k_tile);
    tile.full.begin[warpgroup] = full.begin;
    tile.full.end[warpgroup] = full.end;
  }
}

// The factors of a query tile of fp8. Their product may leave the range of float on the way. With a
// score mod, scales multiply the scores before it (fp8/block_scales.cuh).
template <KernelConfig kConfig>
__device__ __forceinline__ TileScales tile_scales(const problem::Problem& problem,
                                                  const WorkTile& tile) {
  if constexpr (kConfig.score_mod) return {static_cast<float>(math::kLog2E), 1.0f};
  const auto factor = [&](const problem::View& scales) {
    if (!scales.present()) return 1.0f;
    return static_cast<const float*>(scales.data)[scales.offset(tile.batch, tile.kv_head, 0)];
  };
  const double scores =
      problem.scale * math::kLog2E * static_cast<double>(factor(problem.q_descale));
  return {static_cast<float>(scores * static_cast<double>(factor(problem.k_descale))),
          factor(problem.v_descale)};
}

// Whether a sample of V, 16 bytes of a key that the query tile visits, has a large value: then the
// probs of the tile are smaller from the start.
template <KernelConfig kConfig>
__device__ __forceinline__ bool samples_large_value(const problem::Problem& problem,
                                                    const WorkTile& tile) {
  if constexpr (kConfig.fp16 || kConfig.fp8) return false;
  if (tile.keys == KeyVisibility::kNone) return false;
  const problem::View& view = problem.v;
  const std::int32_t key = (kConfig.block_mask ? tile.start_key : tile.first_key) * kConfig.k_tile;
  const uint4 chunk =
      *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(view.data) +
                                      view.offset(problem.k_packed ? 0 : tile.batch, tile.kv_head,
                                                  std::int64_t{tile.k_start} + key));
  const std::uint32_t found = tile::large_halves(chunk.x) | tile::large_halves(chunk.y) |
                              tile::large_halves(chunk.z) | tile::large_halves(chunk.w);
  return (found & tile::kHalvesFound) != 0;
}

// Publishes all query tiles of the block, and after them one with index -1. The first lanes of a
// warp. A block that meets data for which the fast steps are not made ends its fast pass early, and
// goes on carefully: with the tiles that have failed, then with those that are left.
template <KernelConfig kConfig>
class Scheduler {
 public:
  __device__ Scheduler(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters), shared_(shared) {}

  // Locates the first tile while the block's barriers are initialised: its K is loaded before it is
  // complete. After the sequences are listed, where each block lists them.
  __device__ __forceinline__ void locate_first() {
    queue_.init(count());
    locate(0, queue_.index(parameters_, 0));
  }
  // The same for a careful pass.
  __device__ __forceinline__ void locate_first_careful() {
    queue_.init(count());
    locate_careful(0);
  }

  // After a pass: lists the last failed tiles. One thread.
  __device__ __forceinline__ void list_failed_tiles() {
    for (std::uint32_t slot = 0; slot < kTileSlots; ++slot)
      list_failed_tile(parameters_, shared_, slot);
  }

  // Publishes the first tile, and the others when the producer requests them.
  __device__ __forceinline__ void run() {
    const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x % 32);
    if (lane == 0) {
      publish(0);
      queue_.open_counter(parameters_);
      report_large_values(0);
    } else {
      queue_.init(count());
    }
    PipelineState<1> request;
    bool more = queue_.has_static(0);
    std::int32_t round = 1;
#pragma unroll 1
    while (more) {
      const std::int32_t tiles = parameters_.scheduler.static_rounds.batched_tiles(round);
      if (lane >= tiles) return;
      ptx::mbarrier_wait(ptx::shared_address(&shared_.barriers.tile_requested), request.phase);
      request.advance();
      // The lanes that publish decide together, by one look: each costs the next tile time.
      unsigned reports = peek(shared_.careful.reports);
      if (tiles > 1) reports = __shfl_sync((1u << tile::kMaxBatchedTiles) - 1u, reports, 0);
      if (reports != 0 && ends_fast_pass(reports, round, round + lane)) return;
      const bool found = locate(round + lane, queue_.index(parameters_, round + lane));
      publish(round + lane);
      report_large_values(round + lane);
      round += tiles;
      more = tiles > 1 ? queue_.has_static(round - 1) : found;
    }
  }
  // The same for a careful pass. One thread.
  __device__ __forceinline__ void run_carefully() {
    queue_.init(count());
    PipelineState<1> request;
    for (std::int32_t round = 0;; ++round) {
      publish(round);
      if (tile(round).index < 0) return;
      ptx::mbarrier_wait(ptx::shared_address(&shared_.barriers.tile_requested), request.phase);
      request.advance();
      list_failed_tile(parameters_, shared_, static_cast<std::uint32_t>(round + 1));
      locate_careful(round + 1);
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
  // false: there is no such tile.
  __device__ __forceinline__ bool locate(std::int32_t round, std::int32_t index) {
    const bool found = queue_.holds(index);
    if (found) {
      locate_tile<kConfig>(parameters_, sequences(), index, tile(round));
    } else {
      tile(round).index = -1;
    }
    return found;
  }
  // Listed tiles come first, then those that the fast pass has left.
  __device__ __forceinline__ void locate_careful(std::int32_t round) {
    CarefulState<kConfig>& careful = shared_.careful;
    bool& shifted = careful.shifted[round % kTileSlots];
    shifted = false;
    std::int32_t index = take_selected_tile(parameters_, careful, shifted);
    const bool listed = index >= 0;
    if (!listed && careful.next_round >= 0) index = queue_.index(parameters_, careful.next_round++);
    if (!listed && !(index >= 0 && queue_.holds(index))) {
      careful.next_round = -1;
      tile(round).index = -1;
      return;
    }
    locate(round, index);
    shifted = shifted || samples_large_value<kConfig>(parameters_.problem, tile(round));
    careful.searched[round % kTileSlots] = listed || shifted;
  }

  // After a tile is published, since nothing waits for this.
  __device__ __forceinline__ void report_large_values(std::int32_t round) {
    if (tile(round).index >= 0 && samples_large_value<kConfig>(parameters_.problem, tile(round)))
      sm90::report_large_values(shared_.careful.reports, static_cast<std::uint32_t>(round));
  }

  // There are reports: lists the tile of the slot of round `own`, and ends the fast pass before
  // `round` if there is a reason. Where all rows see the same keys, a value that is not finite is
  // where it ought to be: that is none. The tile before stands for those that have failed.
  __device__ __forceinline__ bool ends_fast_pass(unsigned reports, std::int32_t round,
                                                 std::int32_t own) {
    list_failed_tile(parameters_, shared_, static_cast<std::uint32_t>(own));
    const unsigned reasons = reasons_of(reports);
    if ((reasons & (kFailedScores | kOverflowed)) == 0 &&
        (reasons == 0 || !has_cut_keys<kConfig>(tile(round - 1))))
      return false;
    tile(own).index = -1;
    shared_.careful.next_round = round;
    publish(own);
    return true;
  }

  __device__ __forceinline__ void publish(std::int32_t round) {
    if (tile(round).index >= 0) {
      complete_tile<kConfig>(parameters_, tile(round));
      if constexpr (kConfig.fp8)
        shared_.scales[round % kTileSlots] = tile_scales<kConfig>(parameters_.problem, tile(round));
    }
    ptx::mbarrier_arrive(ptx::shared_address(&shared_.barriers.tile_full[round % kTileSlots]));
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  WorkQueue queue_;
};

}  // namespace tilewise::cuda::sm90
