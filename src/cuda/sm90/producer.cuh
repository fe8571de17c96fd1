// The producer: one thread that walks over the work and asks the copy engine for tiles of Q, K and
// V.
#pragma once

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/order.cuh"
#include "cuda/sm90/shared.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/swizzle.h"

namespace tilewise::cuda::sm90 {

// The work of a block, of `count`: two tiles of queries that are dealt out beforehand, then what
// the counter says, which the first block has opened meanwhile. Each block asks until there is
// none, in all as often as there is work behind the first turn.
class Walk {
 public:
  __device__ __forceinline__ Walk(const Parameters& parameters, std::int32_t count)
      : counter_(parameters.counter), count_(count) {
    const bool counts = counter_ != nullptr && count > static_cast<std::int32_t>(gridDim.x);
    if (!counts || blockIdx.x != 0) return;
    counter_->taken = 0;
    ptx::store_release(&counter_->launch, parameters.launch);
  }

  // Of the next turn; count or more: there is none.
  __device__ __forceinline__ std::int32_t next(const Parameters& parameters) {
    const std::int32_t blocks = static_cast<std::int32_t>(gridDim.x);
    if (turn_ < kDealt || counter_ == nullptr)
      return tile::static_index(static_cast<std::int32_t>(blockIdx.x), blocks, turn_++);
    if (turn_ == kDealt) {
      ++turn_;
      while (ptx::load_acquire(&counter_->launch) != parameters.launch) {
      }
    }
    const std::int32_t taken = static_cast<std::int32_t>(atomicAdd(&counter_->taken, 1u));
    if (taken + 1 == count_ - blocks) counter_->launch = 0;
    return kDealt * blocks + taken;
  }

 private:
  static constexpr std::int32_t kDealt = 2;
  Counter* counter_;
  std::int32_t count_;
  std::int32_t turn_ = 0;
};

// Describes a tile where the consumers will read it: the producer has few registers.
template <KernelConfig kConfig>
__device__ __forceinline__ void describe(const Parameters& parameters, std::int32_t index,
                                         Tile& tile) {
  const problem::Problem& problem = parameters.problem;
  const Work work =
      problem.q_packed ? parameters.packed.work(index) : parameters.schedule.work(index);
  const std::int32_t row = work.q_tile * kConfig.q_tile;
  tile.index = index;
  tile.batch = work.batch;
  tile.head = work.head;
  tile.kv_head = work.head / static_cast<std::int32_t>(problem.group);
  tile.row = row;
  const Lengths lengths =
      parameters.lengths != nullptr ? parameters.lengths[work.batch] : parameters.whole;
  tile.q_start = lengths.q_start;
  tile.q_len = lengths.q_len;
  tile.k_start = lengths.k_start;
  const std::int64_t place = std::int64_t{lengths.q_start} + row;
  const std::int64_t batch = problem.q_packed ? 0 : work.batch;
  tile.out = problem.out.offset(batch, work.head, place);
  tile.lse = problem.lse.offset(batch, work.head, place);
  tile.sink = -math::Limits<float>::kInfinity;
  if (problem.sink.present()) {
    const std::int64_t at = problem.sink.offset(0, work.head, 0);
    tile.sink = static_cast<const float*>(problem.sink.data)[at];
  }
  tile.diagonal = problem.top_left ? 0 : lengths.k_len - lengths.q_len;
  const tile::Edges edges = tile::window_edges(lengths.k_len, tile.diagonal, parameters.window_left,
                                               parameters.window_right);
  tile.edges = edges;
  const tile::TileRange keys = tile::key_tiles(
      edges, row, tile::lesser(row + kConfig.q_tile, lengths.q_len) - 1, kConfig.k_tile);
  tile.empty = keys.begin >= keys.end;
  tile.first_key = tile.empty ? 0 : keys.begin;
  tile.end_key = tile.empty ? 1 : keys.end;
  tile.used = kConfig.k_tile;
  if (parameters.open_end) tile.used = lengths.k_len - (keys.end - 1) * kConfig.k_tile;
  if (tile.empty) tile.used = 0;
#pragma unroll 1
  for (int warpgroup = 0; warpgroup < kConfig.warpgroups(); ++warpgroup) {
    const std::int32_t first = row + warpgroup * tile::kRows;
    const std::int32_t last = tile::lesser(first + tile::kRows, lengths.q_len) - 1;
    const std::int32_t begin = edges.begin(last) + kConfig.k_tile - 1;
    const std::int32_t end = edges.end(first);
    tile.full_begin[warpgroup] = begin / kConfig.k_tile;
    tile.full_end[warpgroup] = end > 0 ? end / kConfig.k_tile : 0;
  }
}

// Where a tile is to come from; head and batch are coordinates of the map.
struct Source {
  const CUtensorMap* map;
  std::int32_t row;
  std::int32_t head;
  std::int32_t batch;
};

// A tile of kRows rows into its panels.
template <int kRows, int kColumns>
__device__ __forceinline__ void copy_rows(unsigned char* to, const Source& from,
                                          std::uint64_t& full, ptx::Keep keep) {
  const std::uint32_t barrier = ptx::shared_address(&full);
  ptx::arrive_expecting(barrier, kRows * kColumns * 2);
#pragma unroll
  for (int panel = 0; panel < kColumns / tile::kPanelColumns; ++panel) {
    ptx::copy_tile(ptx::shared_address(to + panel * kRows * tile::kPanelRowBytes), from.map,
                   panel * tile::kPanelColumns, from.row, from.head, from.batch, barrier, keep);
  }
}

// Tiles of keys go from the last to the first, so that the cut ones at the diagonal come first. K
// is one tile ahead of V, as the consumers are, also from one tile of queries to the next: its
// first K comes before the last V of the one before.
template <KernelConfig kConfig>
class Producer {
 public:
  __device__ Producer(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters), shared_(shared) {}

  __device__ __forceinline__ void run() {
    const std::int32_t count =
        parameters_.problem.q_packed ? parameters_.packed.count() : parameters_.schedule.count();
    Walk walk(parameters_, count);
    std::int32_t index = walk.next(parameters_);
    if (index >= count) return close(0);
    describe<kConfig>(parameters_, index, shared_.tiles[0]);
    index = walk.next(parameters_);
    std::uint32_t slot = 0;
#pragma unroll 1
    for (bool first = true;; first = false) {
      const Tile& tile = shared_.tiles[slot];
      const Tile& before = shared_.tiles[(slot - 1) % kTileSlots];
      copy_k(tile, tile.end_key - 1);
      if (!first) copy_v(before, before.first_key);
      copy_q(tile);
      slot = (slot + 1) % kTileSlots;
      const bool more = index < count;
      std::int32_t key = tile.end_key - 2;
      if (key >= tile.first_key) {
        copy_k(tile, key);
        copy_v(tile, key + 1);
        --key;
      }
      if (more) {  // while the consumers have something to do: it takes a microsecond
        describe<kConfig>(parameters_, index, shared_.tiles[slot]);
        index = walk.next(parameters_);
      }
#pragma unroll 1
      for (; key >= tile.first_key; --key) {
        copy_k(tile, key);
        copy_v(tile, key + 1);
      }
      if (!more) {
        copy_v(tile, tile.first_key);
        return close(slot);
      }
    }
  }

 private:
  // There is no more work.
  __device__ __forceinline__ void close(std::uint32_t slot) {
    shared_.tiles[slot].index = -1;
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < kConfig.warpgroups(); ++warpgroup) {
      wait_empty(shared_.barriers.q_empty[warpgroup], q_place_);
      ptx::arrive(ptx::shared_address(&shared_.barriers.q_full[warpgroup][q_place_.stage]));
    }
  }

  // Once each warpgroup has multiplied the last scores of the tile that was there before.
  __device__ __forceinline__ void copy_q(const Tile& tile) {
    const TensorMap& q = parameters_.q;
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < kConfig.warpgroups(); ++warpgroup) {
      wait_empty(shared_.barriers.q_empty[warpgroup], q_place_);
      copy_rows<tile::kRows, kConfig.head_dim>(
          shared_.q[q_place_.stage] + warpgroup * tile::kRows * kConfig.head_dim * 2,
          {&q.map, tile.q_start + tile.row + warpgroup * tile::kRows, tile.head * q.head_step,
           tile.batch * q.batch_step},
          shared_.barriers.q_full[warpgroup][q_place_.stage], ptx::Keep::kBriefly);
    }
    q_place_.advance();
  }

  __device__ __forceinline__ Source keys_of(const TensorMap& tensor, const Tile& tile,
                                            std::int32_t key) const {
    return {&tensor.map, tile.k_start + key * kConfig.k_tile, tile.kv_head * tensor.head_step,
            tile.batch * tensor.batch_step};
  }
  __device__ __forceinline__ void copy_k(const Tile& tile, std::int32_t key) {
    wait_empty(shared_.barriers.k_empty, k_place_);
    std::uint64_t& full = shared_.barriers.k_full[k_place_.stage];
    if (tile.empty) {
      ptx::arrive(ptx::shared_address(&full));
    } else {
      copy_rows<kConfig.k_tile, kConfig.head_dim>(
          shared_.k[k_place_.stage], keys_of(parameters_.k, tile, key), full, ptx::Keep::kLong);
    }
    k_place_.advance();
  }
  __device__ __forceinline__ void copy_v(const Tile& tile, std::int32_t key) {
    wait_empty(shared_.barriers.v_empty, v_place_);
    std::uint64_t& full = shared_.barriers.v_full[v_place_.stage];
    if (tile.empty) {
      ptx::arrive(ptx::shared_address(&full));
    } else {
      copy_rows<kConfig.k_tile, kConfig.value_dim>(
          shared_.v[v_place_.stage], keys_of(parameters_.v, tile, key), full, ptx::Keep::kLong);
    }
    v_place_.advance();
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  Place<kConfig.stages> k_place_;
  Place<kConfig.stages> v_place_;
  Place<kConfig.q_stages> q_place_;
};

}  // namespace tilewise::cuda::sm90
