// The block mask of a launch (tile/block_mask.h): its place in the workspace.
#pragma once

#include <cstddef>
#include <initializer_list>

#include "cuda/forward/sm90/config.h"
#include "cuda/tile/block_mask.h"
#include "problem/arena.h"
#include "problem/problem.h"
#include "problem/status.h"

namespace tilewise::cuda::sm90 {

// The offsets of its arrays in the workspace.
struct BlockMaskPlaces {
  std::int64_t words = 0;
  std::int64_t rows = 0;
  std::int64_t order = 0;
  std::int64_t bits = 0;
  std::int64_t used = 0;
  std::int64_t bands = 0;
};

// Refuses masks whose tiles cannot be numbered.
problem::Status check_block_mask(const problem::Problem& problem, const KernelConfig& config);

// configs: of the kernels that a plan may come to take.
BlockMaskPlaces reserve_block_mask(const problem::Problem& problem,
                                   std::initializer_list<KernelConfig> configs,
                                   problem::Arena& arena);

tile::BlockMask block_mask_at(const problem::Problem& problem, const KernelConfig& config,
                              const BlockMaskPlaces& places, std::byte* workspace);

}  // namespace tilewise::cuda::sm90
