// The Hopper backward kernel. A block owns one tile of keys and visits the queries that see it, of
// all query heads of the group. Its first warpgroup holds the producer and the reducers; the
// others are consumers.
#pragma once

#include "cuda/backward/sm90/consumer.cuh"
#include "cuda/backward/sm90/kernel.h"
#include "cuda/backward/sm90/pair/backward.cuh"
#include "cuda/backward/sm90/producer.cuh"
#include "cuda/backward/sm90/query_gradient.cuh"
#include "cuda/backward/sm90/reducer.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/ptx/setmaxnreg.cuh"

namespace tilewise::cuda::backward::sm90 {

template <int kRow, bool kFp16>
__global__ void __launch_bounds__(KernelConfig::kThreads, 1)
    backward_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config(kFp16);
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(dynamic_shared());
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    shared.tile.index = static_cast<std::int32_t>(
        parameters.turns != nullptr ? atomicAdd(parameters.ticket, 1u) : blockIdx.x);
    shared.found_non_finite = shared.non_finite_keys = 0;
    init_barriers(shared);
  }
  __syncthreads();
  // The grid is an upper bound: a packed batch may have fewer tiles.
  const std::int32_t index = shared.tile.index;
  if (parameters.problem.k_packed && index >= parameters.key_packed.count()) return;
  Producer<kConfig> producer(parameters, shared);
  if (threadIdx.x == 0) {
    load_key_tile<kConfig.block_mask>(parameters, index, KernelConfig::kKTile, shared.tile);
    producer.load_keys();
  }
  if (threadIdx.x >= 128 && threadIdx.x < 128 + KernelConfig::kKTile)
    shared.non_finite_key[threadIdx.x - 128] = 0;
  if (threadIdx.x < 32 && !kConfig.block_mask) {
    __syncwarp();
    QueryMask<kConfig.q_tile, KernelConfig::kKTile>(parameters, shared.tile, shared.mask)
        .build_by_warp();
  }
  __syncthreads();
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<KernelConfig::kProducerRegisters>();
    if (threadIdx.x == 0) producer.run();
    if constexpr (kConfig.block_mask) {
      const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
      if (warp == 1) Reducer<kConfig>(parameters, shared).run_listed();
    } else {
      Reducer<kConfig> reducer(parameters, shared);
      if (parameters.turns == nullptr) {
        if (threadIdx.x == 32) reducer.run_both();
      } else {
        if (threadIdx.x == 32) reducer.template run<0>();
        if (threadIdx.x == 64) reducer.template run<1>();
      }
    }
  } else {
    ptx::setmaxnreg_inc<KernelConfig::kConsumerRegisters>();
    Consumer<kConfig>(parameters, shared, warpgroup - 1).run();
  }
}

template <int kRow>
inline constexpr bool kIsPaired = kKernels[kRow].config(false).paired();

template <int kRow, bool kFp16>
inline constexpr int kSharedBytes = sizeof(Shared<kKernels[kRow].config(kFp16)>);

template <int kRow, bool kFp16>
cudaError_t BackwardKernel<kRow, kFp16>::load() {
  cudaError_t error = cudaSuccess;
  if constexpr (kIsPaired<kRow>) {
    error = pair::load_kernel<kRow, kFp16>();
  } else {
    static_assert(kSharedBytes<kRow, kFp16> <= 227 * 1024, "A block has 227 KB of shared memory.");
    error = cuda::load(backward_kernel<kRow, kFp16>, kSharedBytes<kRow, kFp16>);
  }
  return error == cudaSuccess ? cuda::load(dq_kernel<kRow, kFp16>) : error;
}

template <int kRow, bool kFp16>
cudaError_t BackwardKernel<kRow, kFp16>::start(const Parameters& parameters, std::int64_t tiles,
                                               cudaStream_t stream) {
  if constexpr (kIsPaired<kRow>) {
    return pair::start_kernel<kRow, kFp16>(parameters, tiles, stream);
  } else {
    return launch(backward_kernel<kRow, kFp16>,
                  {tiles, KernelConfig::kThreads, kSharedBytes<kRow, kFp16>}, stream, parameters);
  }
}

template <int kRow, bool kFp16>
cudaError_t BackwardKernel<kRow, kFp16>::start_dq(const Parameters& parameters, std::int64_t blocks,
                                                  cudaStream_t stream) {
  constexpr int kThreads = 128 * kKernels[kRow].config(kFp16).dq_blocks();
  return launch(dq_kernel<kRow, kFp16>, {blocks, kThreads}, stream, parameters);
}

}  // namespace tilewise::cuda::backward::sm90
