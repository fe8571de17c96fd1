// Adds dQ, which two consumer warpgroups stage in shared memory, to its sums in memory.
#pragma once

#include "cuda/backward/query_mask.cuh"
#include "cuda/backward/query_tiles.cuh"
#include "cuda/backward/sm90/query_gradient.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/pipeline.cuh"

namespace tilewise::cuda::backward::sm90 {

// SharedMemory has tile, mask, dq[] and dq_barriers[]. One thread calls the functions.
template <KernelConfig kConfig, class SharedMemory>
class StagedGradient {
 public:
  __device__ StagedGradient(const Parameters& parameters, SharedMemory& shared)
      : parameters_(parameters), shared_(shared), mask_(parameters, shared.tile, shared.mask) {}

 protected:
  using Mask = QueryMask<kConfig.q_tile, KernelConfig::kKTile>;

  // Calls add(number, q_tile) for each tile of queries that the mask shows, of each head of the
  // group, and waits until all sums are in memory.
  template <class Add>
  __device__ __forceinline__ void for_tiles(const Add& add) {
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

  // Whether the blocks that add to a tile of queries take turns.
  __device__ __forceinline__ bool ordered() const { return parameters_.turns != nullptr; }

  // Adds blocks first_block and first_block + 1 of dQ of a tile of queries, of a warpgroup each.
  __device__ __forceinline__ void add_blocks(std::int32_t number, int first_block) {
    add_block(number, first_block, 0);
    add_block(number, first_block, 1);
    phase_ ^= 1;
  }

  __device__ __forceinline__ void wait_staged(int warpgroup) const {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.dq_barriers[warpgroup].full[0]), phase_);
  }

  const Parameters& parameters_;
  SharedMemory& shared_;
  Mask mask_;
  std::uint32_t phase_ = 0;  // the parity that the barriers of dQ are in

 private:
  __device__ __forceinline__ void add_block(std::int32_t number, int first_block,
                                            int warpgroup) const {
    wait_staged(warpgroup);
    if (parameters_.dq_sums != nullptr) {
      ptx::bulk_reduce_add(block_dq_sums<kConfig>(parameters_, number, first_block + warpgroup),
                           ptx::shared_address(shared_.dq[warpgroup]), sizeof(shared_.dq[0]));
      ptx::tma_store_commit();
      ptx::tma_store_wait_read();
    }
    ptx::mbarrier_arrive(ptx::shared_address(&shared_.dq_barriers[warpgroup].empty[0]));
  }
};

}  // namespace tilewise::cuda::backward::sm90
