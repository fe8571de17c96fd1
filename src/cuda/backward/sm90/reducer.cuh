// The reducer: a thread that adds dQ, which the consumers stage, to its sums. With a block mask its
// warp helps to count turns.
#pragma once

#include "cuda/backward/query_mask.cuh"
#include "cuda/backward/query_tiles.cuh"
#include "cuda/backward/sm90/listed_query_tiles.cuh"
#include "cuda/backward/sm90/query_gradient.cuh"
#include "cuda/backward/sm90/shared.cuh"
#include "cuda/backward/turns.cuh"
#include "cuda/ptx/tma.cuh"

namespace tilewise::cuda::backward::sm90 {

template <KernelConfig kConfig>
class Reducer {
 public:
  using Mask = QueryMask<kConfig.q_tile, KernelConfig::kKTile>;

  __device__ Reducer(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters), shared_(shared), mask_(parameters, shared.tile, shared.mask) {}

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
        add(first + q_tile, [&] { return mask_.turn(q_tile); });
    }
    ptx::tma_store_wait();
  }

  // Adds dQ of the tiles of the list. A whole warp calls it.
  __device__ __forceinline__ void run_listed() {
    const std::int32_t group = static_cast<std::int32_t>(parameters_.problem.group);
    const std::int32_t batch = static_cast<std::int32_t>(shared_.tile.sequence.batch);
    std::uint32_t tiles = 0;
#pragma unroll 1
    for (std::int32_t i = 0; i < group; ++i) {
      const std::int32_t head = shared_.tile.kv_head * group + i;
#pragma unroll 1
      for (std::int32_t left = listed_count(parameters_, shared_.tile, head); left > 0; --left) {
        wait_staged(0);  // then the tile is known
        const std::int32_t q_tile = shared_.listed.order[tiles % kListedOrder].q_tile;
        const unsigned long long turn = ordered() ? listed_turn(head, q_tile) : 0;
        if (threadIdx.x % 32 == 0)
          add(first_query_tile(parameters_, batch, head) + q_tile, [&] { return turn; });
        __syncwarp();
        phase_ = ++tiles % 2;
      }
    }
    if (threadIdx.x % 32 == 0) ptx::tma_store_wait();
  }

 private:
  __device__ __forceinline__ bool ordered() const { return parameters_.turns != nullptr; }

  // The block's turn to add to dQ of a listed tile of queries: the number of tiles of keys after
  // this one that the queries see. Whole warps.
  __device__ __forceinline__ unsigned long long listed_turn(std::int32_t head,
                                                            std::int32_t q_tile) const {
    const tile::BlockMask& mask = parameters_.block_mask;
    const std::int32_t row = listed_row(parameters_, shared_.tile, head);
    const std::int32_t after = mask.q_tiles - 1 - shared_.tile.first / KernelConfig::kKTile;
    unsigned turn = 0;
#pragma unroll 1
    for (std::int32_t i = 1 + static_cast<std::int32_t>(threadIdx.x) % 32; i <= after; i += 32) {
      const std::int32_t word = (row + i) * mask.word_count + q_tile / tile::kTilesOfWord;
      turn += mask.words[word].visited >> q_tile % tile::kTilesOfWord & 1;
    }
    for (int step = 16; step > 0; step /= 2) turn += __shfl_xor_sync(~0u, turn, step);
    return turn;
  }

  // turn(): called twice, since the thread has few registers.
  template <class Turn>
  __device__ __forceinline__ void add(std::int32_t number, const Turn& turn) {
    const Turns turns = {parameters_, number};
    if (ordered()) turns.wait(turn());
    add_block(number, 0);
    add_block(number, 1);
    phase_ ^= 1;
    if (!ordered()) return;
    ptx::tma_store_wait();
    turns.end(turn());
  }

  __device__ __forceinline__ void wait_staged(int warpgroup) const {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.dq_barriers[warpgroup].full[0]), phase_);
  }

  __device__ __forceinline__ void add_block(std::int32_t number, int warpgroup) const {
    StageBarriers<1>& barriers = shared_.dq_barriers[warpgroup];
    wait_staged(warpgroup);
    if (parameters_.dq_sums != nullptr) {
      ptx::bulk_reduce_add(block_dq_sums<kConfig>(parameters_, number, warpgroup),
                           ptx::shared_address(shared_.dq[warpgroup]), sizeof(shared_.dq[0]));
      ptx::tma_store_commit();
      ptx::tma_store_wait_read();
    }
    ptx::mbarrier_arrive(ptx::shared_address(&barriers.empty[0]));
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  Mask mask_;
  std::uint32_t phase_ = 0;  // the parity that the barriers of dQ are in
};

}  // namespace tilewise::cuda::backward::sm90
