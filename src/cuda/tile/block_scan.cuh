// Inclusive scans of one value per thread, over a warp and over a block.
#pragma once

#include <cstdint>

namespace tilewise::cuda {

inline constexpr int kScanThreads = 1024;
inline constexpr int kScanWarps = kScanThreads / 32;

// Returns combine(...) of the values of this lane and of all lanes before it. Whole warps.
template <class Combine>
__device__ __forceinline__ std::int64_t warp_scan(std::int64_t value, Combine combine) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1  // the Hopper kernels have no registers for five conditions at once
  for (int step = 1; step < 32; step *= 2) {
    const std::int64_t before = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value = combine(value, before);
  }
  return value;
}

// Returns combine(...) of `carry` and of the values of this thread and of all threads before it.
// `carry` becomes the result of the last thread, for the next values. All threads of a block of
// kWarps warps.
template <int kWarps = kScanWarps, class Combine>
__device__ __forceinline__ std::int64_t block_scan(std::int64_t value,
                                                   std::int64_t* warps /* (kWarps) */,
                                                   std::int64_t& carry, Combine combine) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  value = warp_scan(value, combine);
  if (lane == 31) warps[warp] = value;
  __syncthreads();
  std::int64_t all = carry;
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) value = combine(value, all);
    all = combine(all, warps[w]);
  }
  __syncthreads();
  carry = all;
  return value;
}

}  // namespace tilewise::cuda
