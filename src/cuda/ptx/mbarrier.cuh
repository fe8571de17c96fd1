// Barriers: mbarrier objects in shared memory (PTX ISA 9.7.13.15) and the named barriers of a block
// (9.7.13.1). An mbarrier completes a phase when the expected arrivals and bytes have come; a wait
// names the parity (0, 1, 0, ...) of the phase it waits for.
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// mbarrier.init. One thread, before anybody uses the barrier; then fence_mbarrier_init() and a
// block barrier.
__device__ __forceinline__ void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// fence.mbarrier_init (9.7.13.4): makes the initialised barriers visible to the copy engine. The
// initialising thread.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// mbarrier.arrive: one arrival of this thread. Releases what the thread did before.
__device__ __forceinline__ void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// mbarrier.arrive.expect_tx: one arrival, and the phase also waits for `bytes` of asynchronous
// copies. The thread that issues the copies, before it does.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(std::uint32_t barrier,
                                                          std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// mbarrier.try_wait.parity, until the phase of that parity is complete. Acquires what the arriving
// threads and copies did. Any thread.
__device__ __forceinline__ void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred complete;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
      "@!complete bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// mbarrier.test_wait.parity: whether that phase is complete. If so, acquires as wait() does.
__device__ __forceinline__ bool mbarrier_test(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t complete;
  asm volatile(
      "{\n"
      ".reg .pred complete;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
      "selp.u32 %0, 1, 0, complete;\n"
      "}\n"
      : "=r"(complete)
      : "r"(barrier), "r"(parity)
      : "memory");
  return complete != 0;
}

// barrier.sync: waits until `threads` threads have synced at or arrived at named barrier `name`.
// Whole warps.
__device__ __forceinline__ void named_barrier_sync(std::uint32_t name, std::uint32_t threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// barrier.arrive: the same arrival without the wait. Whole warps.
__device__ __forceinline__ void named_barrier_arrive(std::uint32_t name, std::uint32_t threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

}  // namespace tilewise::cuda::ptx
