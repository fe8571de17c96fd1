// The named barriers of a block of a Hopper kernel (ptx/named_barrier.cuh). Barrier 0 is
// __syncthreads().
#pragma once

#include <cstdint>

#include "math/config.h"

namespace tilewise::cuda::sm90 {

// Each value is the barrier of the first consumer warpgroup; those of the others follow.
enum class NamedBarrier : std::uint32_t {
  kOrder = 1,        // consumer warpgroups take the tensor cores in turns
  kZeroV = 4,        // a warpgroup has zeroed rows of V
  kPassEnd = 7,      // all query tiles of a pass are stored or listed: one barrier for the block
  kPassBegin = 8,    // the second pass may begin: one barrier for the block
  kConsumers = 9,    // all consumers
  kTransposeV = 10,  // the warps that transpose V of fp8
};

TILEWISE_INLINE constexpr std::uint32_t barrier_of(NamedBarrier first, int warpgroup) {
  return static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(warpgroup);
}

}  // namespace tilewise::cuda::sm90
