// The Hopper forward kernel, FlashAttention-3 (arXiv 2407.08608): one persistent block per
// multiprocessor. Its first warpgroup holds the producer, the scheduler warp and the epilogue
// warps; the others are consumers. docs/cuda.md follows a query tile through them.
#pragma once

#include "cuda/forward/sm90/careful_steps.cuh"
#include "cuda/forward/sm90/consumer.cuh"
#include "cuda/forward/sm90/consumer_epilogue.cuh"
#include "cuda/forward/sm90/consumer_math.cuh"
#include "cuda/forward/sm90/consumer_state.cuh"
#include "cuda/forward/sm90/epilogue_warp.cuh"
#include "cuda/forward/sm90/fused_edges.cuh"
#include "cuda/forward/sm90/mask.cuh"
#include "cuda/forward/sm90/passes.cuh"
#include "cuda/forward/sm90/producer.cuh"
#include "cuda/forward/sm90/scheduler_warp.cuh"
#include "cuda/forward/sm90/zero_unowned_rows.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/pdl.cuh"
#include "cuda/ptx/setmaxnreg.cuh"

namespace tilewise::cuda::sm90 {

// The roles of the first warpgroup in the careful passes of a block.
template <KernelConfig kConfig>
__device__ __forceinline__ void run_first_warpgroup_carefully(const Parameters& parameters,
                                                              Shared<kConfig>& shared,
                                                              Scheduler<kConfig>& scheduler_warp) {
  const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x) / 32;
  while (begins_careful_pass(shared, scheduler_warp)) {
    if (warp > 1) {
      if constexpr (kConfig.has_epilogue_warps())
        EpilogueWarp<kConfig>(parameters, shared, warp - 2).run();
    } else if (threadIdx.x == 32) {
      scheduler_warp.run_carefully();
    } else if (threadIdx.x == 0) {
      Producer<kConfig, true>(parameters, shared).run();
    }
  }
}

// The first warpgroup of a block: its fast pass, and its careful ones. NOTE: two copies of the
// roles. In a loop over passes the producer was slower (S 512 causal, D 128: 0.90).
template <KernelConfig kConfig>
__device__ __forceinline__ void run_first_warpgroup(const Parameters& parameters,
                                                    Shared<kConfig>& shared,
                                                    Scheduler<kConfig>& scheduler_warp) {
  const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x) / 32;
  if (warp > 1) {
    if constexpr (kConfig.has_epilogue_warps())
      EpilogueWarp<kConfig>(parameters, shared, warp - 2).run();
    zero_unowned_rows(parameters.problem,
                      sequences_of(parameters.scheduler, shared.sequences).lengths,
                      static_cast<std::int32_t>(blockIdx.x) * 2 + warp - 2,
                      static_cast<std::int32_t>(gridDim.x) * 2);
  } else if (warp == 1 && threadIdx.x % 32 < tile::kMaxBatchedTiles) {
    scheduler_warp.run();
  } else if (threadIdx.x == 0) {
    Producer<kConfig>(parameters, shared).run();
  }
  if constexpr (kConfig.has_careful_kernel()) {
    hand_over(parameters, shared, scheduler_warp);
  } else {
    run_first_warpgroup_carefully(parameters, shared, scheduler_warp);
  }
}

// The consumers of a block likewise.
template <KernelConfig kConfig>
__device__ __forceinline__ void run_consumer_carefully(const Parameters& parameters,
                                                       Shared<kConfig>& shared) {
  while (begins_careful_pass(parameters, shared))
    Consumer<kConfig>(parameters, shared, consumer_number()).run_carefully();
}
template <KernelConfig kConfig>
__device__ __forceinline__ void run_consumer(const Parameters& parameters, Shared<kConfig>& shared,
                                             int number) {
  Consumer<kConfig> consumer(parameters, shared, number);
  consumer.begin();
  consumer.run();
  if constexpr (kConfig.has_careful_kernel()) {
    meet_at_pass_end<kConfig>();
  } else {
    run_consumer_carefully(parameters, shared);
  }
}

// The kernel of a row of the table. nvcc 13 gives a kernel whose template parameter is a struct a
// name that does not compile, so the row stands for it.
template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kKernels[kRow].config(kFp16).threads(), 1)
    forward_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config(kFp16);
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(dynamic_shared());
  Scheduler<kConfig> scheduler_warp(parameters, shared);
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensormap(&parameters.q);
    ptx::prefetch_tensormap(&parameters.k);
    ptx::prefetch_tensormap(&parameters.v);
    if constexpr (kConfig.has_epilogue_warps()) ptx::prefetch_tensormap(&parameters.out);
    init_barriers<kConfig>(shared.barriers);
    init_careful_state(shared.careful);
  }
  const SchedulerParams& scheduler = parameters.scheduler;
  if (threadIdx.x / 32 == 1) {
    if (kConfig.block_mask || scheduler.reads_memory()) ptx::wait_for_dependency();
    if (scheduler.listed) list_sequences(parameters.problem, kConfig.q_tile, shared.sequences);
    if (threadIdx.x == 32) scheduler_warp.locate_first();
  }
  __syncthreads();
  // All above overlaps the end of the kernel before (PDL); the next kernel may do the same here.
  if (threadIdx.x == 0) ptx::launch_dependents();
  ptx::wait_for_dependency();
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<kConfig.producer_registers()>();
    run_first_warpgroup(parameters, shared, scheduler_warp);
  } else {
    ptx::setmaxnreg_inc<kConfig.consumer_registers()>();
    run_consumer(parameters, shared, warpgroup - 1);
  }
}

// The careful passes of a kernel that has none itself: a block goes on where the block of the same
// number in the kernel before has ended, mostly with nothing.
template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kKernels[kRow].config(kFp16).threads(), 1)
    careful_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config(kFp16);
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(dynamic_shared());
  ptx::wait_for_dependency();
  if (threadIdx.x == 0) ptx::launch_dependents();
  const Handover handover = parameters.handovers[blockIdx.x];
  if (handover.listed == 0 && handover.next_round < 0) return;
  Scheduler<kConfig> scheduler_warp(parameters, shared);
  if (threadIdx.x == 0) {
    init_barriers<kConfig>(shared.barriers);
    take_over(handover, shared.careful);
  }
  if (threadIdx.x / 32 == 1 && parameters.scheduler.listed)
    list_sequences(parameters.problem, kConfig.q_tile, shared.sequences);
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<kConfig.producer_registers()>();
    run_first_warpgroup_carefully(parameters, shared, scheduler_warp);
  } else {
    ptx::setmaxnreg_inc<kConfig.consumer_registers()>();
    run_consumer_carefully(parameters, shared);
  }
}

template <int kRow, bool kFp16>
inline constexpr int kSharedBytes = sizeof(Shared<kKernels[kRow].config(kFp16)>);

template <int kRow, bool kFp16>
cudaError_t ForwardKernel<kRow, kFp16>::load() {
  static_assert(kSharedBytes<kRow, kFp16> <= 227 * 1024, "A block has 227 KB of shared memory.");
  const cudaError_t error = cuda::load(forward_kernel<kRow, kFp16>, kSharedBytes<kRow, kFp16>);
  if constexpr (kKernels[kRow].config(kFp16).has_careful_kernel()) {
    if (error == cudaSuccess)
      return cuda::load(careful_kernel<kRow, kFp16>, kSharedBytes<kRow, kFp16>);
  }
  return error;
}

template <int kRow, bool kFp16>
cudaError_t ForwardKernel<kRow, kFp16>::start(const Parameters& parameters, int blocks,
                                              cudaStream_t stream) {
  constexpr KernelConfig kConfig = kKernels[kRow].config(kFp16);
  const Grid grid = {blocks, kConfig.threads(), kSharedBytes<kRow, kFp16>};
  const cudaError_t error = launch_early(forward_kernel<kRow, kFp16>, grid, stream, parameters);
  if constexpr (kConfig.has_careful_kernel()) {
    if (error == cudaSuccess)
      return launch_early(careful_kernel<kRow, kFp16>, grid, stream, parameters);
  }
  return error;
}

}  // namespace tilewise::cuda::sm90
