// The reducers: threads that add the halves of dQ, which a consumer warpgroup stages each, to their
// sums. Where blocks take turns, each half has a thread; otherwise one thread adds both, as with a
// block mask, where its warp helps to count turns.
#pragma once

#include "cuda/backward/sm90/listed_query_tiles.cuh"
#include "cuda/backward/sm90/shared.cuh"
#include "cuda/backward/sm90/staged_gradient.cuh"

namespace tilewise::cuda::backward::sm90 {

template <KernelConfig kConfig>
class Reducer : public StagedGradient<kConfig, Shared<kConfig>> {
 public:
  using Base = StagedGradient<kConfig, Shared<kConfig>>;
  using Base::Base;

  // kHalf: of dQ, and the warpgroup that stages it. A constant takes no register. One thread.
  template <int kHalf>
  __device__ __forceinline__ void run() {
    Base::for_tiles(kHalf, [&](std::int32_t number, int half) {
      Base::add_block(number, half, half);
      phase_ ^= 1;
    });
  }

  // Adds both halves. One thread.
  __device__ __forceinline__ void run_both() {
    Base::for_tiles(0, [&](std::int32_t number, int) { add_both(number); });
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
        Base::wait_staged(0);  // then the tile is known
        const std::int32_t q_tile = shared_.listed.order[tiles % kListedOrder].q_tile;
        const std::uint32_t turn = ordered() ? listed_turn(head, q_tile) : 0;
        __syncwarp();  // all lanes have passed the barrier and read the tile: both are used again
        if (threadIdx.x % 32 == 0)
          add_listed(first_query_tile(parameters_, batch, head) + q_tile, turn);
        __syncwarp();
        phase_ = ++tiles % 2;
      }
    }
    if (threadIdx.x % 32 == 0) ptx::tma_store_wait();
  }

 private:
  using Base::ordered;
  using Base::parameters_;
  using Base::phase_;
  using Base::shared_;

  // The block's turn to add to dQ of a listed tile of queries: the number of tiles of keys after
  // this one that the queries see. Whole warps.
  __device__ __forceinline__ std::uint32_t listed_turn(std::int32_t head,
                                                       std::int32_t q_tile) const {
    const tile::BlockMask& mask = parameters_.block_mask;
    const std::int32_t row = listed_row(parameters_, shared_.tile, head);
    const std::int32_t after = mask.q_tiles - 1 - shared_.tile.first / KernelConfig::kKTile;
    std::uint32_t turn = 0;
#pragma unroll 1
    for (std::int32_t i = 1 + static_cast<std::int32_t>(threadIdx.x) % 32; i <= after; i += 32) {
      const std::int32_t word = (row + i) * mask.word_count + q_tile / tile::kTilesOfWord;
      turn += mask.words[word].visited >> q_tile % tile::kTilesOfWord & 1;
    }
    for (int step = 16; step > 0; step /= 2) turn += __shfl_xor_sync(~0u, turn, step);
    return turn;
  }

  __device__ __forceinline__ void add_both(std::int32_t number) {
    Base::add_block(number, 0, 0);
    Base::add_block(number, 1, 1);
    phase_ ^= 1;
  }

  // Both halves have one turn, that of the first.
  __device__ __forceinline__ void add_listed(std::int32_t number, std::uint32_t turn) {
    const HalfTurns turns = Base::turns(number, 0);
    if (ordered()) turns.wait(turn);
    add_both(number);
    if (!ordered()) return;
    ptx::tma_store_wait();
    turns.end(turn);
  }
};

}  // namespace tilewise::cuda::backward::sm90
