// Clusters: blocks that run at the same time on neighbouring multiprocessors and reach each other's
// shared memory (PTX ISA 5.1.6, state space shared::cluster). Only pairs of blocks are used here,
// numbered 0 and 1. The functions that reach the other block's memory require that it has begun and
// has not ended: both call cluster_sync() before the first and after the last of them.
#pragma once

#include <cstdint>

#include "cuda/ptx/tma.cuh"

namespace tilewise::cuda::ptx {

// barrier.cluster (9.7.13.4): waits for all threads of the cluster, and makes what they wrote
// before visible. Any threads, divergent or not.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
}

// mapa (9.7.9.24): the address in block `rank` of what lies at `address` in this block. The
// functions below take it.
__device__ __forceinline__ std::uint32_t cluster_address(std::uint32_t address, int rank) {
  std::uint32_t result;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
  return result;
}

// st.shared::cluster (9.7.9.12): one number. Any thread.
__device__ __forceinline__ void st_cluster(std::uint32_t to, std::int32_t x) {
  asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

// mbarrier.arrive: one arrival at a barrier of any block of the cluster. Any thread. Its order is
// that of mbarrier_arrive(), within the block: enough for memory that wgmma has read (and was
// waited for) and TMA overwrites. NOTE: for the scope of the cluster, nvcc 13.0 adds fences of all
// memory to the arrival and invalidates L1 at the wait.
__device__ __forceinline__ void mbarrier_arrive_cluster(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// cp.async.bulk (9.7.9.25.4.1): copies `bytes` bytes of this block's shared memory to the other
// block's, and completes them at its barrier. `to` and `barrier` are addresses there. Addresses and
// `bytes` are multiples of 16. One thread; threads that wrote the bytes by ordinary stores execute
// fence_proxy_async() first, and then meet this thread at a barrier.
__device__ __forceinline__ void bulk_copy_cluster(std::uint32_t to, std::uint32_t from,
                                                  std::uint32_t bytes, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// tma_load() into both blocks of the pair: at the same place of each one's shared memory, with the
// bytes completed at the same barrier of each.
__device__ __forceinline__ void tma_load_pair(std::uint32_t to, const void* map,
                                              std::int32_t column, std::int32_t row,
                                              std::int32_t head, std::int32_t batch,
                                              std::uint32_t barrier, L2Hint hint) {
  constexpr std::uint16_t kBoth = 3;
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7, %8;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier), "h"(kBoth),
      "l"(static_cast<std::uint64_t>(hint))
      : "memory");
}

}  // namespace tilewise::cuda::ptx
