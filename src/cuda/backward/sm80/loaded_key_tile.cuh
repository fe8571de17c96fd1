// The tile of keys of a block with the rows that it loads.
#pragma once

#include "cuda/backward/key_tile.cuh"
#include "cuda/sm80/work_tile.cuh"

namespace tilewise::cuda::backward::sm80 {

using cuda::sm80::Rows;

struct LoadedKeyTile : KeyTile {
  Rows q, k, v, dout;
};

// Sets the rows of K and V of a tile of keys whose sequence and kv head are set.
__device__ __forceinline__ void set_key_rows(const Parameters& parameters, LoadedKeyTile& tile) {
  const Problem& problem = parameters.problem;
  const Sequence& sequence = tile.sequence;
  const std::int64_t batch = problem.k_packed ? 0 : sequence.batch;
  tile.k =
      cuda::sm80::rows_of<std::uint16_t>(problem.k, batch, tile.kv_head, sequence.k_start,
                                         sequence.k_len, problem.head_dim, parameters.aligned16.k);
  tile.v =
      cuda::sm80::rows_of<std::uint16_t>(problem.v, batch, tile.kv_head, sequence.k_start,
                                         sequence.k_len, problem.value_dim, parameters.aligned16.v);
}

}  // namespace tilewise::cuda::backward::sm80
