// The bulk tensor copy engine (TMA): PTX ISA 9.7.9.27, tensor maps 5.5.
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// How long a line should stay in L2: the encodings that createpolicy.fractional gives for a whole
// access (9.7.9.18).
enum class L2Hint : std::uint64_t {
  kEvictFirst = 0x12F0000000000000u,
  kEvictLast = 0x14F0000000000000u
};

// prefetch.tensormap: the descriptor into its cache. One thread.
__device__ __forceinline__ void prefetch_tensormap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// cp.async.bulk.tensor: the box of a 4-dimensional map at (column, row, head, batch) into shared
// memory at `to`, what lies outside of the tensor as zeros. One thread. Asynchronous: the bytes of
// the whole box are counted by `barrier`, which must expect them; readers wait there.
__device__ __forceinline__ void tma_load(std::uint32_t to, const void* map, std::int32_t column,
                                         std::int32_t row, std::int32_t head, std::int32_t batch,
                                         std::uint32_t barrier, L2Hint hint) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier),
      "l"(static_cast<std::uint64_t>(hint))
      : "memory");
}

// cp.async.bulk.prefetch.tensor (9.7.9.27.3): the same box into L2 only, where it is to stay. One
// thread; nobody waits for it.
__device__ __forceinline__ void tma_prefetch(const void* map, std::int32_t column, std::int32_t row,
                                             std::int32_t head, std::int32_t batch, L2Hint hint) {
  asm volatile(
      "cp.async.bulk.prefetch.tensor.4d.L2.global.tile.L2::cache_hint [%0, {%1, %2, %3, %4}], "
      "%5;" ::"l"(map),
      "r"(column), "r"(row), "r"(head), "r"(batch), "l"(static_cast<std::uint64_t>(hint))
      : "memory");
}

// cp.async.bulk.tensor the other way: the box from shared memory at `from`, of which what lies
// outside of the tensor is left out. One thread, which then commits. What other threads wrote to
// shared memory by ordinary stores needs fence_proxy_async() before.
__device__ __forceinline__ void tma_store(const void* map, std::int32_t column, std::int32_t row,
                                          std::int32_t head, std::int32_t batch,
                                          std::uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::
          "l"(map),
      "r"(column), "r"(row), "r"(head), "r"(batch), "r"(from)
      : "memory");
}
// cp.async.bulk.commit_group (9.7.9.28.1): the stores of this thread so far.
__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// cp.async.bulk.wait_group.read (9.7.9.28.2): until committed stores have read shared memory.
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// cp.async.bulk.wait_group: until they are done, and this thread's later stores come behind them.
__device__ __forceinline__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// fence.proxy.async (9.7.13.4): what this thread wrote to shared memory by ordinary stores becomes
// visible to wgmma and the copy engine. Each writing thread, before the barrier behind which they
// read.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace tilewise::cuda::ptx
