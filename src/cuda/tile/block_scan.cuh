// Running totals over the threads of a warp, and of a block and on to its next round.
#pragma once

#include <cstdint>

namespace tilewise::cuda {

inline constexpr int kScanThreads = 1024;
inline constexpr int kScanWarps = kScanThreads / 32;

// combine(...) of the values of this lane and of all before it. Whole warps.
template <class Combine>
__device__ __forceinline__ std::int64_t running_in_warp(std::int64_t value, Combine combine) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1  // five conditions at once are more than the Hopper kernels have registers for
  for (int step = 1; step < 32; step *= 2) {
    const std::int64_t before = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value = combine(value, before);
  }
  return value;
}

// combine(...) of the values of this thread, of all before it in the block, and of `carry`; carry
// becomes that of the last thread. All kScanThreads threads.
template <class Combine>
__device__ std::int64_t running(std::int64_t value, std::int64_t* warps /* (kScanWarps) */,
                                std::int64_t& carry, Combine combine) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  value = running_in_warp(value, combine);
  if (lane == 31) warps[warp] = value;
  __syncthreads();
  std::int64_t all = carry;
  for (int w = 0; w < kScanWarps; ++w) {
    if (w == warp) value = combine(value, all);
    all = combine(all, warps[w]);
  }
  __syncthreads();
  carry = all;
  return value;
}

}  // namespace tilewise::cuda
