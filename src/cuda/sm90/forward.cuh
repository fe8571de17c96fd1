// The Hopper forward kernel: one block per multiprocessor, which walks over tiles of queries. Its
// first warpgroup produces, the others consume.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/load.h"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/succession.cuh"
#include "cuda/sm90/carrier.cuh"
#include "cuda/sm90/consumer.cuh"
#include "cuda/sm90/describer.cuh"
#include "cuda/sm90/fold.cuh"
#include "cuda/sm90/gaps.cuh"
#include "cuda/sm90/look.cuh"
#include "cuda/sm90/producer.cuh"
#include "cuda/sm90/repair.cuh"

namespace tilewise::cuda::sm90 {

// Threads that have to do with rows of out: consumers and carriers.
template <KernelConfig kConfig>
inline constexpr std::uint32_t kClosingThreads =
    (kConfig.has_carriers() ? 160 : 128) * kConfig.warpgroups();

// kCode stands for a configuration (encode()).
template <std::uint64_t kCode>
__global__ void __launch_bounds__(decode(kCode).threads(), 1)
    forward_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = decode(kCode);
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(dynamic_shared());
  Describer<kConfig> describer(parameters, shared);
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    ptx::prefetch_map(&parameters.q);
    ptx::prefetch_map(&parameters.k);
    ptx::prefetch_map(&parameters.v);
    if constexpr (kConfig.has_carriers()) ptx::prefetch_map(&parameters.out);
    init_barriers<kConfig>(shared.barriers);
    shared.last_mark = 0;
  }
  const Finding& finding = parameters.finding;
  if (threadIdx.x / 32 == 1) {
    if (finding.listed || finding.sequences.lengths != nullptr) ptx::wait_for_kernel_before();
    if (finding.listed) list_sequences(parameters.problem, kConfig.q_tile, shared.sequences);
    if (threadIdx.x == 32) describer.begin();
  }
  __syncthreads();
  // Up to here beside the end of the kernel before. The next one may come as soon as there is room.
  if (threadIdx.x == 0) ptx::admit_next_kernel();
  ptx::wait_for_kernel_before();
  if (warpgroup == 0) {
    ptx::give_up_registers<kConfig.producer_registers()>();
    const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x) / 32;
    if (warp > 1) {
      if constexpr (kConfig.has_carriers()) {
        Carrier<kConfig>(parameters, shared, warp - 2).run();
        ptx::arrive_named(kRepairBarrier, kClosingThreads<kConfig>);
      }
      fill_gaps(parameters.problem, sequences_of(finding, shared.sequences).lengths,
                static_cast<std::int32_t>(blockIdx.x) * 2 + warp - 2,
                static_cast<std::int32_t>(gridDim.x) * 2);
    } else if (warp == 1 && threadIdx.x % 32 < tile::kMostAtOnce) {
      describer.run();
    } else if (threadIdx.x == 0) {
      Producer<kConfig>(parameters, shared).run();
    }
  } else {
    ptx::take_registers<kConfig.consumer_registers()>();
    Consumer<kConfig>(parameters, shared, warpgroup - 1).run();
    ptx::sync_named(kRepairBarrier, kClosingThreads<kConfig>);
    if (shared.last_mark != 0) {
      // Where K was: nothing is copied any more.
      RowMemory* const memory = reinterpret_cast<RowMemory*>(shared.k[0]) + (warpgroup - 1);
      repair(parameters, sequences_of(finding, shared.sequences), kConfig.q_tile,
             kConfig.warpgroups(), shared.last_mark, memory, warpgroup - 1);
    }
  }
}

template <KernelConfig kConfig>
struct Launch {
  static constexpr int kBytes = sizeof(Shared<kConfig>);
  static_assert(kBytes <= 227 * 1024, "A block has 227 KB of shared memory.");

  static cudaError_t load() { return cuda::load(forward_kernel<encode(kConfig)>, kBytes); }
  static cudaError_t start(const Parameters& parameters, int blocks, cudaStream_t stream) {
    return launch_early(forward_kernel<encode(kConfig)>, {blocks, kConfig.threads(), kBytes},
                        stream, parameters);
  }
  static constexpr Instance instance() { return {kConfig, load, start}; }
};

// Of a row of the table.
template <bool kFp16, bool kGeneral, int kRow>
constexpr Instance table_instance() {
  return Launch<config_of(kRow, kFp16, kGeneral)>::instance();
}
template <bool kFp16, int kRow>
constexpr Instance narrow_instance() {
  return Launch<narrow(config_of(kRow, kFp16, false))>::instance();
}
template <bool kFp16>
constexpr Instance folding_instance() {
  return Launch<folding(config_of(kFoldingRow, kFp16, false))>::instance();
}

}  // namespace tilewise::cuda::sm90
