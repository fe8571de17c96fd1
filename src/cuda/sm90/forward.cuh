// The Hopper forward kernel: one block per multiprocessor, which walks over tiles of queries. Its
// first warpgroup produces, the others consume.
#pragma once

#include "cuda/ptx/registers.cuh"
#include "cuda/sm90/consumer.cuh"
#include "cuda/sm90/epilogue.cuh"
#include "cuda/sm90/producer.cuh"

namespace tilewise::cuda::sm90 {

template <KernelConfig kConfig>
__device__ __forceinline__ void consume(const Parameters& parameters, Shared<kConfig>& shared,
                                        int warpgroup) {
  Consumer<kConfig> consumer(parameters, shared, warpgroup);
  for (std::uint32_t parity = 0;; parity ^= 1) {
    ptx::wait(ptx::shared_address(&shared.barriers.q_full[warpgroup]), parity);
    const Tile tile = shared.tiles[parity];
    if (tile.index < 0) return;
    float out[Consumer<kConfig>::kOut];
    tile::RowStates states;
    consumer.attend(tile, out, states);
    finish_tile<kConfig>(parameters, tile, warpgroup, out, states);
  }
}

// kCode stands for a configuration (encode()).
template <std::uint32_t kCode>
__global__ void __launch_bounds__(decode(kCode).threads(), 1)
    forward_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = decode(kCode);
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(memory);
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    ptx::prefetch_map(&parameters.q.map);
    ptx::prefetch_map(&parameters.k.map);
    ptx::prefetch_map(&parameters.v.map);
    init_barriers<kConfig>(shared.barriers);
  }
  __syncthreads();
  if (warpgroup == 0) {
    ptx::give_up_registers<kConfig.producer_registers()>();
    if (threadIdx.x == 0) Producer<kConfig>(parameters, shared).run();
  } else {
    ptx::take_registers<kConfig.consumer_registers()>();
    consume<kConfig>(parameters, shared, warpgroup - 1);
  }
}

template <KernelConfig kConfig>
struct Launch {
  static constexpr int kBytes = sizeof(Shared<kConfig>);
  static_assert(kBytes <= 227 * 1024, "A block has 227 KB of shared memory.");

  static cudaError_t load() {
    return cudaFuncSetAttribute(forward_kernel<encode(kConfig)>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  }
  static cudaError_t start(const Parameters& parameters, int blocks, cudaStream_t stream) {
    forward_kernel<encode(kConfig)><<<blocks, kConfig.threads(), kBytes, stream>>>(parameters);
    return cudaGetLastError();
  }
  static constexpr Instance instance() { return {kConfig, load, start}; }
};

// The kernel of a row of the table. Softcap and ALiBi take registers: 176 keys would spill.
template <bool kFp16, bool kGeneral, int kRow>
constexpr Instance table_instance() {
  constexpr int kMostGeneralKeys = 128;
  constexpr TileRow row = kTiles[kRow];
  constexpr bool kFewer = kGeneral && row.k_tile > kMostGeneralKeys;
  constexpr int kKeys = kFewer ? kMostGeneralKeys : row.k_tile;
  constexpr KernelConfig kConfig = {kFp16, row.head_dim, row.q_tile, kKeys, row.stages, kGeneral};
  return Launch<kConfig>::instance();
}

}  // namespace tilewise::cuda::sm90
