// The block mask of a launch (tile/block_mask.h): its place in the workspace, and the kernels that
// fill it.
//
// The rows of a block mask are tiles of queries in a forward kernel, whose blocks own queries, and
// tiles of keys in a backward kernel. There, read "key" for "query" in tile/block_mask.h and the
// other way round.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "cuda/tile/block_mask.h"
#include "problem/arena.h"
#include "problem/problem.h"
#include "problem/status.h"

namespace tilewise::cuda::mask {

enum class Owner : std::int32_t { kQueries, kKeys };

// The tiles of scores of a kernel: `own` rows of the owner by `other` of the other side.
struct Tiling {
  Owner owner;
  int own;
  int other;
};

// The offsets of its arrays in the workspace.
struct BlockMaskPlaces {
  std::int64_t words = 0;
  std::int64_t rows = 0;
  std::int64_t order = 0;
  std::int64_t bits = 0;
  std::int64_t used = 0;
};

// Refuses the options that are given, by name, and a boolean mask beside cu_seqlens.
struct Option {
  const char* name;
  bool given;
};
problem::Status check_options(const problem::Problem& problem,
                              std::initializer_list<Option> options);

// Refuses masks whose tiles cannot be numbered.
problem::Status check_block_mask(const problem::Problem& problem, const Tiling& tiling);

// tilings: of the kernels that a plan may come to take.
BlockMaskPlaces reserve_block_mask(const problem::Problem& problem,
                                   std::initializer_list<Tiling> tilings, problem::Arena& arena);

// bands: of the slices (host/bands.h).
tile::BlockMask block_mask_at(const problem::Problem& problem, const Tiling& tiling,
                              const BlockMaskPlaces& places, std::byte* workspace,
                              const tile::Band* bands);

// The parameters of the kernels below.
struct MaskParameters {
  problem::Problem problem;
  tile::BlockMask mask;
  std::int32_t window_left;  // as the problem's, at most tile::kMaxLength
  std::int32_t window_right;
};

// Loads the kernels of start_block_mask() on the current device.
cudaError_t load_block_mask_kernels();

// Fills the block mask. Its bands must be there, and mask.used be 0 without a boolean mask.
cudaError_t start_block_mask(const MaskParameters& parameters, const Tiling& tiling,
                             cudaStream_t stream);

}  // namespace tilewise::cuda::mask
