// Pipelines: rings of stages in shared memory that a producer fills and consumers read. Each stage
// has two mbarriers, `full` and `empty`; a phase of them completes each time around the ring.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"

namespace tilewise::cuda::sm90 {

template <int kMaxStages>
struct StageBarriers {
  std::uint64_t full[kMaxStages];
  std::uint64_t empty[kMaxStages];
};

// Returns the same number in all lanes, in a way that ptxas sees: loops that it bounds keep stages
// and addresses in uniform registers.
__device__ __forceinline__ std::int32_t uniform(std::int32_t x) { return __shfl_sync(~0u, x, 0); }

// A stage of a ring, and the parity of the phase that its barriers are in.
template <int kStages>
struct PipelineState {
  int stage = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }

  // The byte where the stage begins, if each has `bytes`. Selected, not multiplied: ptxas selects
  // in uniform registers.
  __device__ __forceinline__ std::uint32_t offset(std::uint32_t bytes) const {
    if constexpr (kStages == 1) return 0;
    if constexpr (kStages == 2) return stage == 0 ? 0 : bytes;
    return static_cast<std::uint32_t>(stage) * bytes;
  }
};

// The state after `count` advances, for counts below 2^32. NOTE: a count that every lane derives in
// the same way keeps what depends on the state in uniform registers, where a state that is carried
// through the loops does not (D 64, S 16384: 478 TFLOP/s, 453 with a carried state of V).
template <int kStages>
__device__ __forceinline__ PipelineState<kStages> state_after(std::uint32_t count) {
  return {static_cast<int>(count % kStages), count / kStages % 2};
}

template <int kStages, int kMaxStages>
__device__ __forceinline__ void wait_full(StageBarriers<kMaxStages>& barriers,
                                          const PipelineState<kStages>& state) {
  ptx::mbarrier_wait(ptx::shared_address(&barriers.full[state.stage]), state.phase);
}
// The first time around, stages are empty without an arrival.
template <int kStages, int kMaxStages>
__device__ __forceinline__ void wait_empty(StageBarriers<kMaxStages>& barriers,
                                           const PipelineState<kStages>& state) {
  ptx::mbarrier_wait(ptx::shared_address(&barriers.empty[state.stage]), state.phase ^ 1);
}
// This warp has read the stage. Whole warps.
__device__ __forceinline__ void release(std::uint64_t& empty) {
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&empty));
}

// The consumers' end of a pipeline.
template <int kStages, int kMaxStages>
class PipelineConsumer {
 public:
  __device__ explicit PipelineConsumer(StageBarriers<kMaxStages>& barriers) : barriers_(barriers) {}

  // Until the stage is full.
  __device__ __forceinline__ void wait() const { wait_full(barriers_, state_); }
  // Until the stage after it is.
  __device__ __forceinline__ void wait_next() const {
    PipelineState<kStages> next = state_;
    next.advance();
    wait_full(barriers_, next);
  }
  // This warp has read the stage, and goes on to the next one. Whole warps.
  __device__ __forceinline__ void release() {
    sm90::release(barriers_.empty[state_.stage]);
    state_.advance();
  }
  __device__ __forceinline__ const PipelineState<kStages>& state() const { return state_; }

 private:
  StageBarriers<kMaxStages>& barriers_;
  PipelineState<kStages> state_;
};

// The same with a count as state (state_after()).
template <int kStages, int kMaxStages>
class CountedPipelineConsumer {
 public:
  __device__ explicit CountedPipelineConsumer(StageBarriers<kMaxStages>& barriers)
      : barriers_(barriers) {}

  __device__ __forceinline__ void wait() const { wait_full(barriers_, state()); }
  __device__ __forceinline__ void release() {
    sm90::release(barriers_.empty[state().stage]);
    ++count_;
  }
  __device__ __forceinline__ PipelineState<kStages> state() const {
    return state_after<kStages>(count_);
  }

 private:
  StageBarriers<kMaxStages>& barriers_;
  std::uint32_t count_ = 0;
};

}  // namespace tilewise::cuda::sm90
