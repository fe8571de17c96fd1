// The numbers of the tiles of queries, on the device.
#pragma once

#include "cuda/backward/parameters.h"

namespace tilewise::cuda::backward {

// The number of tiles of queries. For sequences of different lengths it is computed on the device
// only.
__device__ __forceinline__ std::int32_t query_tiles(const Parameters& parameters) {
  return parameters.problem.varlen_q() ? parameters.packed.count() : parameters.schedule.count();
}

__device__ __forceinline__ tile::TileCoord query_tile_coord(const Parameters& parameters,
                                                            std::int32_t index) {
  return parameters.problem.varlen_q() ? parameters.packed.tile_coord(index)
                                       : parameters.schedule.tile_coord(index);
}

// The number of the first tile of queries of a head.
__device__ __forceinline__ std::int32_t first_query_tile(const Parameters& parameters,
                                                         std::int32_t batch, std::int32_t head) {
  return parameters.problem.varlen_q() ? parameters.packed.first(batch, head)
                                       : parameters.schedule.first(batch, head);
}

}  // namespace tilewise::cuda::backward
