// A pair of warps that have the same rows (KernelConfig::paired).
#pragma once

#include "cuda/ptx/named_barrier.cuh"
#include "cuda/sm80/work_tile.cuh"

namespace tilewise::cuda::sm80 {

// The number of the warp, found again each time: the loops have no register for it.
__device__ __forceinline__ std::uint32_t warp() { return ptx::opaque(threadIdx.x) / 32; }

// Named barriers 1 and on (0 is __syncthreads), one for each warp of the block: it arrives, its
// partner waits. Nothing holds the warp back there: before it arrives again, the two meet, or the
// block does. If not, a warp that is ahead arrives twice, the barrier takes it for both, and its
// partner waits for ever.
__device__ __forceinline__ std::uint32_t own_barrier() { return warp() + 1; }

// What this warp wrote before is there for its partner.
__device__ __forceinline__ void tell_partner() { ptx::named_barrier_arrive(own_barrier(), 64); }
__device__ __forceinline__ void await_partner() { ptx::named_barrier_sync((warp() ^ 1) + 1, 64); }

// Both wait for each other, at a barrier of the pair behind those of the warps.
template <KernelConfig kConfig>
__device__ __forceinline__ void meet_partner() {
  static_assert(1 + kConfig.warps + kConfig.warps / 2 <= 16, "A block has 16 named barriers.");
  ptx::named_barrier_sync(1 + kConfig.warps + warp() / 2, 64);
}

// One value for each of the lane's four rows, the same in the lanes of a quad: the warp's, to its
// partner.
template <KernelConfig kConfig>
__device__ __forceinline__ void give_rows(Shared<kConfig>& shared, const float (&values)[4]) {
  const std::uint32_t thread = ptx::opaque(threadIdx.x);
  const std::uint32_t lane = thread % 32;
  const std::uint32_t own = lane % 4;
  const float low = own == 0 ? values[0] : values[1];
  const float high = own == 2 ? values[2] : values[3];
  shared.exchange.rows[thread / 32][lane] = own < 2 ? low : high;
}

// The partner's.
template <KernelConfig kConfig>
__device__ __forceinline__ float4 take_rows(const Shared<kConfig>& shared) {
  const std::uint32_t thread = ptx::opaque(threadIdx.x);
  const std::uint32_t lane = thread % 32;
  return *reinterpret_cast<const float4*>(&shared.exchange.rows[thread / 32 ^ 1][lane / 4 * 4]);
}

}  // namespace tilewise::cuda::sm80
