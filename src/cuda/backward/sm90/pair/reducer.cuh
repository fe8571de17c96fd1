// The reducer of a block of a pair: a thread that adds the block's half of dQ to its sums.
#pragma once

#include "cuda/backward/query_mask.cuh"
#include "cuda/backward/query_tiles.cuh"
#include "cuda/backward/sm90/pair/shared.cuh"
#include "cuda/backward/sm90/query_gradient.cuh"
#include "cuda/backward/turns.cuh"
#include "cuda/ptx/tma.cuh"

namespace tilewise::cuda::backward::sm90::pair {

template <KernelConfig kConfig>
class Reducer {
 public:
  using Mask = QueryMask<kConfig.q_tile, KernelConfig::kKTile>;

  __device__ Reducer(const Parameters& parameters, Shared<kConfig>& shared, int rank)
      : parameters_(parameters),
        shared_(shared),
        mask_(parameters, shared.tile, shared.mask),
        rank_(rank) {}

  // One thread.
  __device__ __forceinline__ void run() {
    const tile::Range tiles = mask_.tiles();
    const std::int32_t group = static_cast<std::int32_t>(parameters_.problem.group);
    const std::int32_t first_head = shared_.tile.kv_head * group;
#pragma unroll 1
    for (std::int32_t head = first_head; head < first_head + group; ++head) {
      const std::int32_t first = first_query_tile(
          parameters_, static_cast<std::int32_t>(shared_.tile.sequence.batch), head);
#pragma unroll 1
      for (std::int32_t q_tile = tiles.begin; q_tile < tiles.end; ++q_tile)
        add(first + q_tile, q_tile);
    }
    ptx::tma_store_wait();
  }

 private:
  // Both blocks take a turn together, each with its own columns of dQ.
  __device__ __forceinline__ void add(std::int32_t number, std::int32_t q_tile) {
    const Turns turns = {parameters_, number};
    const bool ordered = parameters_.turns != nullptr;
    if (ordered) turns.wait_shared(mask_.turn(q_tile), kBlocks);
    add_block(number, 0);
    add_block(number, 1);
    phase_ ^= 1;
    if (!ordered) return;
    ptx::tma_store_wait();
    turns.end_shared();
  }

  __device__ __forceinline__ void add_block(std::int32_t number, int warpgroup) const {
    StageBarriers<1>& barriers = shared_.dq_barriers[warpgroup];
    ptx::mbarrier_wait(ptx::shared_address(&barriers.full[0]), phase_);
    if (parameters_.dq_sums != nullptr) {
      const int block = rank_ * KernelConfig::kConsumers + warpgroup;
      ptx::bulk_reduce_add(block_dq_sums<kConfig>(parameters_, number, block),
                           ptx::shared_address(shared_.dq[warpgroup]), sizeof(shared_.dq[0]));
      ptx::tma_store_commit();
      ptx::tma_store_wait_read();
    }
    ptx::mbarrier_arrive(ptx::shared_address(&barriers.empty[0]));
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  Mask mask_;
  int rank_;
  std::uint32_t phase_ = 0;  // the parity that the barriers of dQ are in
};

}  // namespace tilewise::cuda::backward::sm90::pair
