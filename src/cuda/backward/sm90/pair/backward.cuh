// The Hopper backward kernel for D or Dv in (128, 256]. Two blocks of a cluster own 64 keys each of
// a tile of 128 and visit the queries that see the tile, of all query heads of the group, together:
// each loads half of the columns of Q and dO for both, and computes half of the columns of dQ from
// the dS of both. In a block, one consumer warpgroup owns dV and the other one dK.
#pragma once

#include "cuda/backward/sm90/kernel.h"
#include "cuda/backward/sm90/pair/key_consumer.cuh"
#include "cuda/backward/sm90/pair/producer.cuh"
#include "cuda/backward/sm90/pair/reducer.cuh"
#include "cuda/backward/sm90/pair/value_consumer.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/ptx/setmaxnreg.cuh"

namespace tilewise::cuda::backward::sm90::pair {

template <int kRow, bool kFp16>
__global__ void __launch_bounds__(KernelConfig::kThreads, 1)
    backward_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config(kFp16);
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(dynamic_shared());
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const int rank = static_cast<int>(blockIdx.x % kBlocks);
  if (threadIdx.x == 0) {
    shared.found_non_finite = shared.second_pass = shared.non_finite_keys = 0;
    shared.index = static_cast<std::int32_t>(blockIdx.x / kBlocks);
    init_barriers(shared);
  }
  ptx::cluster_sync();  // before it, the other block may not have begun
  if (parameters.turns != nullptr) {
    if (threadIdx.x == 0 && rank == 0) {
      const std::int32_t index = static_cast<std::int32_t>(atomicAdd(parameters.ticket, 1u));
      for (int block = 0; block < kBlocks; ++block)
        ptx::st_cluster(ptx::cluster_address(ptx::shared_address(&shared.index), block), index);
    }
    ptx::cluster_sync();
  }
  // The grid is an upper bound: a packed batch may have fewer tiles.
  const std::int32_t index = shared.index;
  if (parameters.problem.k_packed && index >= parameters.key_packed.count()) return;
  Producer<kConfig> producer(parameters, shared, rank);
  if (threadIdx.x == 0) {
    load_key_tile(parameters, index, KernelConfig::kKTile, shared.tile);
    producer.load_keys();
  }
  if (threadIdx.x >= 128 && threadIdx.x < 128 + kKeys) shared.non_finite_key[threadIdx.x - 128] = 0;
  if (threadIdx.x < 32) {
    __syncwarp();
    QueryMask<kConfig.q_tile, KernelConfig::kKTile>(parameters, shared.tile, shared.mask)
        .build_by_warp();
  }
  __syncthreads();
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<KernelConfig::kProducerRegisters>();
    if (threadIdx.x == 0) producer.load_queries(0);
    if (threadIdx.x == 32) Reducer<kConfig>(parameters, shared).run(rank);
    if (threadIdx.x == 64) producer.load_dout(0);
    if (threadIdx.x == 96) producer.load_statistics(0);
    ptx::cluster_sync();  // as in ends_non_finite()
    if (shared.second_pass != 0) {
      if (threadIdx.x == 0) producer.load_queries(1);
      if (threadIdx.x == 64) producer.load_dout(1);
      if (threadIdx.x == 96) producer.load_statistics(1);
    }
  } else if (warpgroup == 1) {
    ptx::setmaxnreg_inc<KernelConfig::kConsumerRegisters>();
    ValueConsumer<kConfig>(parameters, shared, rank).run();
  } else {
    ptx::setmaxnreg_inc<KernelConfig::kConsumerRegisters>();
    KeyConsumer<kConfig>(parameters, shared, rank).run();
  }
  ptx::cluster_sync();  // the other block no longer reaches this one
}

template <int kRow, bool kFp16>
inline constexpr int kSharedBytes = sizeof(Shared<kKernels[kRow].config(kFp16)>);

template <int kRow, bool kFp16>
cudaError_t load_kernel() {
  static_assert(kSharedBytes<kRow, kFp16> <= 227 * 1024, "A block has 227 KB of shared memory.");
  return load(backward_kernel<kRow, kFp16>, kSharedBytes<kRow, kFp16>);
}

// Starts two blocks for each of the tiles of keys.
template <int kRow, bool kFp16>
cudaError_t start_kernel(const Parameters& parameters, std::int64_t tiles, cudaStream_t stream) {
  return launch(backward_kernel<kRow, kFp16>,
                {kBlocks * tiles, KernelConfig::kThreads, kSharedBytes<kRow, kFp16>, kBlocks},
                stream, parameters);
}

}  // namespace tilewise::cuda::backward::sm90::pair
