// The reducer of a block of a pair: a thread that adds the block's half of dQ to its sums.
#pragma once

#include "cuda/backward/sm90/pair/shared.cuh"
#include "cuda/backward/sm90/staged_gradient.cuh"
#include "cuda/backward/turns.cuh"

namespace tilewise::cuda::backward::sm90::pair {

template <KernelConfig kConfig>
class Reducer : public StagedGradient<kConfig, Shared<kConfig>> {
 public:
  using Base = StagedGradient<kConfig, Shared<kConfig>>;

  __device__ Reducer(const Parameters& parameters, Shared<kConfig>& shared, int rank)
      : Base(parameters, shared), rank_(rank) {}

  // One thread.
  __device__ __forceinline__ void run() {
    Base::for_tiles([&](std::int32_t number, std::int32_t q_tile) { add(number, q_tile); });
  }

 private:
  using Base::mask_;
  using Base::parameters_;

  // Both blocks take a turn together, each with its own columns of dQ.
  __device__ __forceinline__ void add(std::int32_t number, std::int32_t q_tile) {
    const Turns turns = {parameters_, number};
    const bool ordered = Base::ordered();
    if (ordered) turns.wait_shared(mask_.turn(q_tile), kBlocks);
    Base::add_blocks(number, rank_ * KernelConfig::kConsumers);
    if (!ordered) return;
    ptx::tma_store_wait();
    turns.end_shared();
  }

  int rank_;
};

}  // namespace tilewise::cuda::backward::sm90::pair
