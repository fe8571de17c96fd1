// The producer of a block of a pair: threads that load the block's K and V once, and then one half
// of the columns of Q and dO, by tiles, for both blocks.
#pragma once

#include "cuda/backward/query_mask.cuh"
#include "cuda/backward/query_tiles.cuh"
#include "cuda/backward/sm90/pair/shared.cuh"
#include "cuda/sm90/tma_tile.cuh"

namespace tilewise::cuda::backward::sm90::pair {

template <KernelConfig kConfig>
class Producer {
 public:
  using Block = Shared<kConfig>;
  using Mask = QueryMask<kConfig.q_tile, KernelConfig::kKTile>;

  __device__ Producer(const Parameters& parameters, Block& shared, int rank)
      : parameters_(parameters),
        shared_(shared),
        mask_(parameters, shared.tile, shared.mask),
        rank_(rank) {}

  // One thread.
  __device__ __forceinline__ void load_keys() const {
    const KeyTile& tile = shared_.tile;
    const std::int32_t first = static_cast<std::int32_t>(tile.sequence.k_start) + tile.first;
    const std::int32_t own = first + rank_ * kKeys;
    const std::int32_t other = first + (1 - rank_) * kKeys;
    const TensorMap& k = parameters_.k;
    const std::int32_t batch = static_cast<std::int32_t>(tile.sequence.batch);
    const std::uint32_t full = ptx::shared_address(&shared_.keys_full);
    ptx::mbarrier_arrive_expect_tx(full,
                                   sizeof(shared_.k) + sizeof(shared_.v) + sizeof(shared_.peer_k));
    load(shared_.k, k, own);
    load(shared_.v, parameters_.v, own);
#pragma unroll
    for (int panel = 0; panel < Block::kOwnPanels; ++panel) {
      ptx::tma_load(ptx::shared_address(shared_.peer_k + panel * Block::kPanelBytes), &k.map,
                    first_panel(panel) * tile::kPanelColumns, other, tile.kv_head * k.coords.head,
                    batch * k.coords.batch, full, ptx::L2Hint::kEvictLast);
    }
  }

  // One thread each: load Q, its statistics, or dO, of the queries that see the keys, of all query
  // heads of the group. Pass 0 or 1. NOTE: one thread for all would spill registers.
  __device__ __forceinline__ void load_queries(int pass) const {
    for_tiles(pass, [&](const QueryTile& tile) {
      const PipelineState<kConfig.stages> at = cuda::sm90::state_after<kConfig.stages>(tile.number);
      cuda::sm90::wait_empty(shared_.q_barriers, at);
      std::uint64_t& full = shared_.q_barriers.full[at.stage];
      ptx::mbarrier_arrive_expect_tx(ptx::shared_address(&full), sizeof(shared_.q[0]));
      load_half(shared_.q[at.stage], parameters_.q, tile, full);
    });
  }
  __device__ __forceinline__ void load_statistics(int pass) const {
    for_tiles(pass, [&](const QueryTile& tile) {
      const PipelineState<kConfig.stages> at = cuda::sm90::state_after<kConfig.stages>(tile.number);
      cuda::sm90::wait_empty(shared_.q_barriers, at);
      const std::uint32_t full = ptx::shared_address(&shared_.q_barriers.full[at.stage]);
      constexpr int kBytes = sizeof(shared_.statistics[0]);
      ptx::mbarrier_arrive_expect_tx(full, kBytes);
      ptx::bulk_load(ptx::shared_address(shared_.statistics[at.stage]),
                     parameters_.statistics + std::int64_t{tile.in_problem} * 2 * kConfig.q_tile,
                     kBytes, full);
    });
  }
  __device__ __forceinline__ void load_dout(int pass) const {
    for_tiles(pass, [&](const QueryTile& tile) {
      cuda::sm90::wait_empty(shared_.dout_barriers, cuda::sm90::state_after<1>(tile.number));
      std::uint64_t& full = shared_.dout_barriers.full[0];
      ptx::mbarrier_arrive_expect_tx(ptx::shared_address(&full), sizeof(shared_.dout));
      load_half(shared_.dout, parameters_.dout, tile, full);
    });
  }

 private:
  struct QueryTile {
    std::int32_t head;
    std::int32_t q_tile;
    std::int32_t in_problem;  // its number there
    std::uint32_t number;     // among those that the block loads
  };

  template <class Load>
  __device__ __forceinline__ void for_tiles(int pass, const Load& load) const {
    const tile::Range tiles = mask_.tiles();
    const std::int32_t group = static_cast<std::int32_t>(parameters_.problem.group);
    const std::int32_t first_head = shared_.tile.kv_head * group;
    std::uint32_t number =
        static_cast<std::uint32_t>(pass * group * math::max(tiles.end - tiles.begin, 0));
#pragma unroll 1
    for (std::int32_t head = first_head; head < first_head + group; ++head) {
      const std::int32_t batch = static_cast<std::int32_t>(shared_.tile.sequence.batch);
      const std::int32_t first = first_query_tile(parameters_, batch, head);
#pragma unroll 1
      for (std::int32_t q_tile = tiles.begin; q_tile < tiles.end; ++q_tile)
        load({head, q_tile, first + q_tile, number++});
    }
  }

  // The first of the panels that this block loads for both, or adds to dQ, and `panel` further.
  __device__ __forceinline__ int first_panel(int panel) const {
    return rank_ * Block::kOwnPanels + panel;
  }

  __device__ __forceinline__ void load_half(unsigned char* to, const TensorMap& map,
                                            const QueryTile& tile, std::uint64_t& full) const {
    const Sequence& sequence = shared_.tile.sequence;
    const std::int32_t row =
        static_cast<std::int32_t>(sequence.q_start) + tile.q_tile * kConfig.q_tile;
    const std::int32_t batch = static_cast<std::int32_t>(sequence.batch);
#pragma unroll 1
    for (int i = 0; i < Block::kOwnPanels; ++i) {
      const int panel = first_panel(i);
      ptx::tma_load_pair(ptx::shared_address(to + panel * Block::kPanelBytes), &map.map,
                         panel * tile::kPanelColumns, row, tile.head * map.coords.head,
                         batch * map.coords.batch, ptx::shared_address(&full),
                         ptx::L2Hint::kEvictLast);
    }
  }

  __device__ __forceinline__ void load(unsigned char* to, const TensorMap& map,
                                       std::int32_t row) const {
    const std::int32_t batch = static_cast<std::int32_t>(shared_.tile.sequence.batch);
    cuda::sm90::tma_load_tile<kKeys, kConfig.columns>(
        to, {&map.map, row, shared_.tile.kv_head * map.coords.head, batch * map.coords.batch},
        shared_.keys_full, ptx::L2Hint::kEvictLast);
  }

  const Parameters& parameters_;
  Block& shared_;
  Mask mask_;
  int rank_;
};

}  // namespace tilewise::cuda::backward::sm90::pair
