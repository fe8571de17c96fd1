// Numbers that are the same in all lanes of a warp, so that the compiler knows: it then keeps them,
// and what follows of them alone, in uniform registers, of which the lanes' own are not spent.
#pragma once

#include <cstdint>

namespace tilewise::cuda::tile {

// Whole warps.
__device__ __forceinline__ std::int32_t uniform(std::int32_t x) { return __shfl_sync(~0u, x, 0); }
__device__ __forceinline__ std::int64_t uniform(std::int64_t x) {
  const auto bits = static_cast<std::uint64_t>(x);
  const auto low = static_cast<std::uint32_t>(uniform(static_cast<std::int32_t>(bits)));
  const auto high = static_cast<std::uint32_t>(uniform(static_cast<std::int32_t>(bits >> 32)));
  return static_cast<std::int64_t>(std::uint64_t{high} << 32 | low);
}
template <class T>
__device__ __forceinline__ T* uniform(T* pointer) {
  return reinterpret_cast<T*>(uniform(reinterpret_cast<std::int64_t>(pointer)));
}

}  // namespace tilewise::cuda::tile
