// The tile of keys of a block with the rows that it loads.
#pragma once

#include "cuda/backward/key_tile.cuh"
#include "cuda/backward/query_tiles.cuh"
#include "cuda/sm80/work_tile.cuh"

namespace tilewise::cuda::backward {

template <class Element>
struct LoadedKeyTile : KeyTile {
  cuda::sm80::RowsOf<Element> q, k, v, dout;
};

// Sets the rows of K and V of a tile of keys whose sequence and kv head are set.
template <class Element>
__device__ __forceinline__ void set_key_rows(const Parameters& parameters,
                                             LoadedKeyTile<Element>& tile) {
  const Problem& problem = parameters.problem;
  const Sequence& sequence = tile.sequence;
  const std::int64_t batch = problem.k_packed ? 0 : sequence.batch;
  tile.k = cuda::sm80::rows_of<Element>(problem.k, batch, tile.kv_head, sequence.k_start,
                                        sequence.k_len, problem.head_dim, parameters.aligned16.k);
  tile.v = cuda::sm80::rows_of<Element>(problem.v, batch, tile.kv_head, sequence.k_start,
                                        sequence.k_len, problem.value_dim, parameters.aligned16.v);
}

// Sets the tile of keys of this block. Returns false if there is none: the grid is an upper bound,
// and a packed batch may have fewer tiles. All threads.
template <class Element>
__device__ __forceinline__ bool begin_key_tile(const Parameters& parameters, int k_tile,
                                               LoadedKeyTile<Element>& tile) {
  if (threadIdx.x == 0) {
    tile.index = static_cast<std::int32_t>(
        parameters.turns != nullptr ? atomicAdd(parameters.ticket, 1u) : blockIdx.x);
  }
  __syncthreads();
  const std::int32_t index = tile.index;
  if (parameters.problem.k_packed && index >= parameters.key_packed.count()) return false;
  if (threadIdx.x == 0) {
    load_key_tile(parameters, index, k_tile, tile);
    set_key_rows(parameters, tile);
  }
  __syncthreads();
  return true;
}

// Sets the query head of a tile of keys, and its rows of Q and dO.
template <class Element>
__device__ __forceinline__ void set_query_rows(const Parameters& parameters, std::int32_t head,
                                               LoadedKeyTile<Element>& tile) {
  const Problem& problem = parameters.problem;
  const Sequence& sequence = tile.sequence;
  const std::int64_t batch = problem.q_packed ? 0 : sequence.batch;
  tile.head = head;
  tile.first_query_tile =
      first_query_tile(parameters, static_cast<std::int32_t>(sequence.batch), head);
  tile.q = cuda::sm80::rows_of<Element>(problem.q, batch, head, sequence.q_start, sequence.q_len,
                                        problem.head_dim, parameters.aligned16.q);
  tile.dout =
      cuda::sm80::rows_of<Element>(problem.dout, batch, head, sequence.q_start, sequence.q_len,
                                   problem.value_dim, parameters.aligned16_dout);
}

}  // namespace tilewise::cuda::backward
