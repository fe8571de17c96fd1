// A pair of warps that compute the same rows (KernelConfig::paired).
#pragma once

#include "cuda/ptx/named_barrier.cuh"
#include "cuda/sm80/work_tile.cuh"

namespace tilewise::cuda::sm80 {

// The number of the warp. It is computed each time: the loops have no register for it.
__device__ __forceinline__ std::uint32_t warp() { return ptx::opaque(threadIdx.x) / 32; }

// Named barrier 0 is __syncthreads. From 1 on, each warp of the block has one, at which it arrives
// and its partner waits. Arriving does not block: between two arrivals there must be a sync of the
// pair or of the block. Without it a warp that runs ahead arrives twice, the barrier counts both,
// and its partner waits for ever.
__device__ __forceinline__ std::uint32_t own_barrier() { return warp() + 1; }

// Publishes to the partner what this warp has written.
__device__ __forceinline__ void arrive_for_partner() {
  ptx::named_barrier_arrive(own_barrier(), 64);
}
__device__ __forceinline__ void wait_for_partner() {
  ptx::named_barrier_sync((warp() ^ 1) + 1, 64);
}

// Synchronises both warps. The barriers of the pairs are numbered after those of the warps.
template <KernelConfig kConfig>
__device__ __forceinline__ void sync_pair() {
  static_assert(1 + kConfig.warps + kConfig.warps / 2 <= 16, "A block has 16 named barriers.");
  ptx::named_barrier_sync(1 + kConfig.warps + warp() / 2, 64);
}

// Writes one value for each of the lane's four rows, the same in all lanes of a quad, for the
// partner.
template <KernelConfig kConfig>
__device__ __forceinline__ void publish_rows(Shared<kConfig>& shared, const float (&values)[4]) {
  const std::uint32_t thread = ptx::opaque(threadIdx.x);
  const std::uint32_t lane = thread % 32;
  const std::uint32_t own = lane % 4;
  const float low = own == 0 ? values[0] : values[1];
  const float high = own == 2 ? values[2] : values[3];
  shared.pair.rows[thread / 32][lane] = own < 2 ? low : high;
}

// Reads the partner's values for the lane's four rows.
template <KernelConfig kConfig>
__device__ __forceinline__ float4 read_partner_rows(const Shared<kConfig>& shared) {
  const std::uint32_t thread = ptx::opaque(threadIdx.x);
  const std::uint32_t lane = thread % 32;
  return *reinterpret_cast<const float4*>(&shared.pair.rows[thread / 32 ^ 1][lane / 4 * 4]);
}

}  // namespace tilewise::cuda::sm80
