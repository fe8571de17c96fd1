// TMA: copies of boxes of a tensor between global and shared memory (cp.async.bulk.tensor, PTX ISA
// 9.7.9.27; tensor maps, 5.5). TMA accesses shared memory through the asynchronous proxy
// (fence_proxy_async()).
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// How long a line should stay in L2. The values are the encodings that createpolicy.fractional
// returns for a whole access (9.7.9.18).
enum class L2Hint : std::uint64_t {
  kEvictFirst = 0x12F0000000000000u,
  kEvictLast = 0x14F0000000000000u
};

// prefetch.tensormap: brings the tensor map into its cache. One thread.
__device__ __forceinline__ void prefetch_tensormap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// cp.async.bulk.tensor: loads the box of a 4-dimensional map at (column, row, head,
// batch) into shared memory at `to`; elements outside of the tensor become zeros. One thread. The
// load is asynchronous: `barrier` must expect the bytes of the whole box, and readers wait there.
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

// cp.async.bulk (9.7.9.25.4.1): loads `bytes` contiguous bytes. Both addresses and `bytes` are
// multiples of 16. One thread; asynchronous like tma_load().
__device__ __forceinline__ void bulk_load(std::uint32_t to, const void* from, std::uint32_t bytes,
                                          std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// cp.async.bulk.prefetch.tensor (9.7.9.27.3): loads the box into L2 only, with a hint how long to
// keep it. One thread. Nothing signals its completion.
__device__ __forceinline__ void tma_prefetch(const void* map, std::int32_t column, std::int32_t row,
                                             std::int32_t head, std::int32_t batch, L2Hint hint) {
  asm volatile(
      "cp.async.bulk.prefetch.tensor.4d.L2.global.tile.L2::cache_hint [%0, {%1, %2, %3, %4}], "
      "%5;" ::"l"(map),
      "r"(column), "r"(row), "r"(head), "r"(batch), "l"(static_cast<std::uint64_t>(hint))
      : "memory");
}

// cp.async.bulk.tensor: stores the box from shared memory at `from`; elements outside
// of the tensor are not written. One thread, which then commits. Threads that wrote the box by
// ordinary stores execute fence_proxy_async() first, and then meet this thread at a barrier.
__device__ __forceinline__ void tma_store(const void* map, std::int32_t column, std::int32_t row,
                                          std::int32_t head, std::int32_t batch,
                                          std::uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::
          "l"(map),
      "r"(column), "r"(row), "r"(head), "r"(batch), "r"(from)
      : "memory");
}
// cp.reduce.async.bulk (9.7.9.25.4.2): adds `bytes` bytes of fp32 numbers in shared memory to
// numbers in global memory, each atomically. Both addresses and `bytes` are multiples of 16. One
// thread, which then commits, as for tma_store().
__device__ __forceinline__ void bulk_reduce_add(float* to, std::uint32_t from,
                                                std::uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}
// cp.async.bulk.commit_group (9.7.9.28.1): the stores that this thread has issued since its last
// commit become a group.
__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// cp.async.bulk.wait_group.read (9.7.9.28.2): waits until all committed stores of this thread have
// read shared memory, which may then be overwritten.
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// cp.async.bulk.wait_group (9.7.9.28.2): waits until all committed stores of this thread are
// complete, so that its later stores to the same addresses come after them.
__device__ __forceinline__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// fence.proxy.async (9.7.13.4): makes what this thread wrote to shared memory by ordinary stores
// visible to the asynchronous proxy, that is, to wgmma and TMA. Every writing thread executes it
// before the barrier after which they read.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace tilewise::cuda::ptx
