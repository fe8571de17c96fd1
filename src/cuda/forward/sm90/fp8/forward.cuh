// The Hopper forward kernel for fp8. Its scheduler, producer and masks are those of
// forward/sm90/forward.cuh; a warpgroup transposes V (transposer.cuh), and consumers store out
// themselves.
#pragma once

#include "cuda/forward/sm90/consumer_epilogue.cuh"
#include "cuda/forward/sm90/consumer_state.cuh"
#include "cuda/forward/sm90/fp8/block_scales.cuh"
#include "cuda/forward/sm90/fp8/consumer.cuh"
#include "cuda/forward/sm90/fp8/consumer_epilogue.cuh"
#include "cuda/forward/sm90/fp8/kernel_table.h"
#include "cuda/forward/sm90/fp8/transposer.cuh"
#include "cuda/forward/sm90/mask.cuh"
#include "cuda/forward/sm90/producer.cuh"
#include "cuda/forward/sm90/scheduler_warp.cuh"
#include "cuda/forward/sm90/zero_unowned_rows.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/ptx/pdl.cuh"
#include "cuda/ptx/setmaxnreg.cuh"

namespace tilewise::cuda::sm90 {

// The roles of the first warpgroup.
template <KernelConfig kConfig>
__device__ __forceinline__ void run_first_warpgroup_fp8(const Parameters& parameters,
                                                        Shared<kConfig>& shared,
                                                        Scheduler<kConfig>& scheduler_warp) {
  const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x) / 32;
  if (warp == 1 && threadIdx.x % 32 < tile::kMaxBatchedTiles) {
    scheduler_warp.run();
  } else if (threadIdx.x == 0) {
    Producer<kConfig>(parameters, shared).run();
  }
}

// The last warpgroup.
template <KernelConfig kConfig>
__device__ __forceinline__ void run_transposers(const Parameters& parameters,
                                                Shared<kConfig>& shared) {
  const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x) / 32 % kTransposers;
  Transposer<kConfig>(shared, warp).run();
  zero_unowned_rows(parameters.problem,
                    sequences_of(parameters.scheduler, shared.sequences).lengths,
                    static_cast<std::int32_t>(blockIdx.x) * kTransposers + warp,
                    static_cast<std::int32_t>(gridDim.x) * kTransposers);
}

// The kernel of a row of the table.
template <int kRow, bool kE5M2>
__global__ void __launch_bounds__(kFp8Kernels[kRow].config(kE5M2).threads(), 1)
    fp8_forward_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kFp8Kernels[kRow].config(kE5M2);
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(dynamic_shared());
  Scheduler<kConfig> scheduler_warp(parameters, shared);
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensormap(&parameters.q);
    ptx::prefetch_tensormap(&parameters.k);
    ptx::prefetch_tensormap(&parameters.v);
    init_loaded_v_barriers<kConfig>(shared.loaded_v_barriers);
    init_barriers<kConfig>(shared.barriers);
    init_careful_state(shared.careful);
  }
  const SchedulerParams& scheduler = parameters.scheduler;
  if (threadIdx.x / 32 == 1) {
    if (scheduler.reads_memory()) ptx::wait_for_dependency();
    if (scheduler.listed) list_sequences(parameters.problem, kConfig.q_tile, shared.sequences);
    if (threadIdx.x == 32) scheduler_warp.locate_first();
  }
  __syncthreads();
  // All above overlaps the end of the kernel before (PDL); the next kernel may do the same here.
  if (threadIdx.x == 0) ptx::launch_dependents();
  ptx::wait_for_dependency();
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<kConfig.producer_registers()>();
    run_first_warpgroup_fp8(parameters, shared, scheduler_warp);
  } else if (warpgroup > kConfig.consumers()) {
    ptx::setmaxnreg_dec<kConfig.transposer_registers()>();
    run_transposers(parameters, shared);
  } else {
    ptx::setmaxnreg_inc<kConfig.consumer_registers()>();
    Fp8Consumer<kConfig> consumer(parameters, shared, warpgroup - 1);
    consumer.begin();
    consumer.run();
  }
}

template <int kRow, bool kE5M2>
inline constexpr int kFp8SharedBytes = sizeof(Shared<kFp8Kernels[kRow].config(kE5M2)>);

template <int kRow, bool kE5M2>
cudaError_t Fp8ForwardKernel<kRow, kE5M2>::load() {
  static_assert(kFp8SharedBytes<kRow, kE5M2> <= 227 * 1024, "A block has 227 KB of shared memory.");
  return cuda::load(fp8_forward_kernel<kRow, kE5M2>, kFp8SharedBytes<kRow, kE5M2>);
}

template <int kRow, bool kE5M2>
cudaError_t Fp8ForwardKernel<kRow, kE5M2>::start(const Parameters& parameters, int blocks,
                                                 cudaStream_t stream) {
  constexpr KernelConfig kConfig = kFp8Kernels[kRow].config(kE5M2);
  const Grid grid = {blocks, kConfig.threads(), kFp8SharedBytes<kRow, kE5M2>};
  return launch_early(fp8_forward_kernel<kRow, kE5M2>, grid, stream, parameters);
}

}  // namespace tilewise::cuda::sm90
