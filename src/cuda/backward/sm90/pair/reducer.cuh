// The reducer of a block of a pair: a thread that adds the block's half of dQ to its sums.
#pragma once

#include "cuda/backward/sm90/pair/shared.cuh"
#include "cuda/backward/sm90/staged_gradient.cuh"

namespace tilewise::cuda::backward::sm90::pair {

template <KernelConfig kConfig>
class Reducer : public StagedGradient<kConfig, Shared<kConfig>> {
 public:
  using Base = StagedGradient<kConfig, Shared<kConfig>>;
  using Base::Base;

  // One thread. rank: of the block.
  __device__ __forceinline__ void run(int rank) {
    Base::for_tiles(rank, [&](std::int32_t number, int half) {
      const int first = half * KernelConfig::kConsumers;
      Base::add_block(number, first, 0);
      Base::add_block(number, first + 1, 1);
      phase_ ^= 1;
    });
  }

 private:
  using Base::phase_;
};

}  // namespace tilewise::cuda::backward::sm90::pair
