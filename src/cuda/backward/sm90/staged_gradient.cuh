// Adds a half of dQ, which consumer warpgroups stage in shared memory, to its sums in memory.
#pragma once

#include "cuda/backward/query_mask.cuh"
#include "cuda/backward/query_tiles.cuh"
#include "cuda/backward/sm90/query_gradient.cuh"
#include "cuda/backward/turns.cuh"
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

  // Calls add(number, half) for each tile of queries that the mask shows, of each head of the
  // group, in the block's turn, and waits until all sums are in memory. The counter of the next
  // turn is read while the sums of this one are on their way.
  template <class Add>
  __device__ __forceinline__ void for_tiles(int half, const Add& add) {
    const std::int32_t group = static_cast<std::int32_t>(parameters_.problem.group);
#pragma unroll 1
    for (std::int32_t i = 0; i < group; ++i) {
      const std::int32_t first =
          first_query_tile(parameters_, static_cast<std::int32_t>(shared_.tile.sequence.batch),
                           shared_.tile.kv_head * group + i);
      std::int32_t q_tile = mask_.tiles().begin;
      std::uint32_t own = turn(q_tile);
      bool has_come = !ordered();
#pragma unroll 1
      while (q_tile < mask_.tiles().end) {
        if (!has_come) turns(first + q_tile, half).wait(own);
        add(first + q_tile, half);
        ++q_tile;
        if (!ordered()) continue;
        const std::uint32_t next = turn(q_tile);
        has_come = q_tile < mask_.tiles().end && turns(first + q_tile, half).has_come(next);
        ptx::tma_store_wait();
        turns(first + q_tile - 1, half).end(own);
        own = next;
      }
    }
    ptx::tma_store_wait();
  }

  // Whether the blocks that add to a tile of queries take turns.
  __device__ __forceinline__ bool ordered() const { return parameters_.turns != nullptr; }
  __device__ __forceinline__ HalfTurns turns(std::int32_t number, int half) const {
    return {parameters_, number, half};
  }

  // Adds a block of dQ of a tile of queries, which a warpgroup stages.
  __device__ __forceinline__ void add_block(std::int32_t number, int block, int warpgroup) const {
    wait_staged(warpgroup);
    if (parameters_.dq_sums != nullptr) {
      ptx::bulk_reduce_add(block_dq_sums<kConfig>(parameters_, number, block),
                           ptx::shared_address(shared_.dq[warpgroup]), sizeof(shared_.dq[0]));
      ptx::tma_store_commit();
      ptx::tma_store_wait_read();
    }
    ptx::mbarrier_arrive(ptx::shared_address(&shared_.dq_barriers[warpgroup].empty[0]));
  }

  __device__ __forceinline__ void wait_staged(int warpgroup) const {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.dq_barriers[warpgroup].full[0]), phase_);
  }

  const Parameters& parameters_;
  SharedMemory& shared_;
  Mask mask_;
  std::uint32_t phase_ = 0;  // the parity that the barriers of dQ are in

 private:
  __device__ __forceinline__ std::uint32_t turn(std::int32_t q_tile) const {
    return static_cast<std::uint32_t>(mask_.turn(q_tile));
  }
};

}  // namespace tilewise::cuda::backward::sm90
