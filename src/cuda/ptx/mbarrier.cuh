// mbarrier: a barrier object in shared memory (PTX ISA 9.7.13.15). It completes a phase when the
// expected arrivals and bytes have come; a wait names the parity (0, 1, 0, ...) of the phase that
// it waits for.
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// mbarrier.init: a phase will expect `arrivals` arrivals. One thread, which then executes
// fence_mbarrier_init(); other threads may use the barrier after a block barrier.
__device__ __forceinline__ void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// mbarrier.inval: the barrier is none from here on, and may be initialised again. One thread, after
// a block barrier that ends all other use.
__device__ __forceinline__ void mbarrier_invalidate(std::uint32_t barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// fence.mbarrier_init (9.7.13.4): makes the barriers that this thread has initialised visible to
// TMA copies.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// mbarrier.arrive: one arrival. Any thread. Releases what the thread did before.
__device__ __forceinline__ void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// mbarrier.arrive.expect_tx: one arrival, and the phase also waits for `bytes` of asynchronous
// copies. The thread that issues the copies calls it before it issues them.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(std::uint32_t barrier,
                                                          std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// mbarrier.try_wait.parity: waits until the phase of that parity is complete. Any thread. Acquires
// what the arriving threads and the copies did.
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

}  // namespace tilewise::cuda::ptx
