// FlashAttention-1 (arXiv 2205.14135), Algorithm 2: a block has a head, tiles of keys in the outer
// loop, of queries in the inner one. out and the states of its rows pass through memory for each
// pair of tiles; out there is always right for the keys seen so far.
#pragma once

#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/ladder/kernel_table.h"
#include "cuda/ladder/parameters.h"
#include "cuda/sm80/epilogue.cuh"
#include "cuda/sm80/tile_step.cuh"
#include "math/integer.h"

namespace tilewise::cuda::ladder {

template <KernelConfig kConfig>
class Flash1 : public sm80::TileStep<kConfig> {
 public:
  using Step = sm80::TileStep<kConfig>;
  static_assert(Step::kParts == 1, "A lane has two rows.");

  __device__ Flash1(const Parameters& parameters, sm80::Shared<kConfig>& shared)
      : Step(parameters.tiles, shared), given_(parameters) {}

  // The tile is described as the head's first one.
  __device__ __forceinline__ void run() {
    if (threadIdx.x < 32) mask_.gather();
    if (threadIdx.x == 0) shared_.non_finite_pass = false;
    __syncthreads();
    const std::int32_t first_index = tile_.index;
    close_unseen(first_index);
    for (std::int32_t key = 0; key * kConfig.k_tile < keys(); ++key) {
      std::int32_t query = next_visit(0, key);
      if (query < 0) continue;
      __syncthreads();  // nobody reads the K, V and Q before these
      this->load_k(key, 0);
      this->load_v(key, 0);
      fetch(query);
      while (query >= 0) {
        const std::int32_t next = next_visit(query + 1, key);
        move_to(first_index, query);
        visit(query, key, next);
        query = next;
      }
    }
  }

 private:
  using Step::kOut;
  using Step::kScores;
  using Step::mask_;
  using Step::out_;
  using Step::parameters_;
  using Step::shared_;
  using Step::states_;
  using Step::tile_;

  __device__ __forceinline__ std::int32_t queries() const {
    return static_cast<std::int32_t>(tile_.sequence.q_len);
  }
  __device__ __forceinline__ std::int32_t keys() const {
    return static_cast<std::int32_t>(tile_.sequence.k_len);
  }
  __device__ __forceinline__ std::int32_t last_row(std::int32_t query) const {
    return math::min((query + 1) * kConfig.q_tile(), queries()) - 1;
  }

  // Tiles of keys that some row of a tile of queries sees: there is one band, none between them is
  // empty.
  __device__ __forceinline__ tile::Range tiles_of(std::int32_t query) const {
    const tile::Range keys =
        tile::keys_of(shared_.mask.bands[0], query * kConfig.q_tile(), last_row(query));
    if (keys.begin >= keys.end) return {0, 0};
    return {keys.begin / kConfig.k_tile, math::ceil_div(keys.end, kConfig.k_tile)};
  }

  // The first tile of queries from `query` on that sees some of tile `key`. -1: none.
  __device__ __forceinline__ std::int32_t next_visit(std::int32_t query, std::int32_t key) const {
    for (; query * kConfig.q_tile() < queries(); ++query) {
      const tile::Range tiles = tiles_of(query);
      if (key >= tiles.begin && key < tiles.end) return query;
    }
    return -1;
  }

  // Q of a tile of queries is on its way, if there is one.
  __device__ __forceinline__ void fetch(std::int32_t query) {
    if (query >= 0) {
      sm80::load_tile<kConfig.q_tile(), kConfig.columns, kConfig.threads()>(
          tile_.q, query * kConfig.q_tile(), shared_.q);
    }
    ptx::cp_async_commit();
  }

  // The tile is that of `query`, and what was fetched is there.
  __device__ __forceinline__ void move_to(std::int32_t first_index, std::int32_t query) {
    __syncthreads();  // nobody reads what the tile was before
    if (threadIdx.x == 0) {
      shared_.tile.index = first_index + query;
      shared_.tile.first = query * kConfig.q_tile();
      shared_.tile.last = last_row(query);
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
  }

  // Tiles of queries that see nothing at all.
  __device__ void close_unseen(std::int32_t first_index) {
    for (std::int32_t query = 0; query * kConfig.q_tile() < queries(); ++query) {
      const tile::Range tiles = tiles_of(query);
      if (tiles.begin < tiles.end) continue;
      move_to(first_index, query);
      this->clear();
      close();
    }
  }

  // A pair of tiles: the inner loop of Algorithm 2. K, V and Q are there.
  __device__ __forceinline__ void visit(std::int32_t query, std::int32_t key, std::int32_t next) {
    const tile::Range tiles = tiles_of(query);
    const bool last = key == tiles.end - 1;
    if (key == tiles.begin) {
      this->clear();
    } else {
      load_rows();
    }
    float scores[1][kScores];
    this->multiply_scores(0, scores);
    if (key != tiles.begin) multiply_rows();
    __syncthreads();  // nobody reads Q any more
    if (!last) fetch(next);
    const float scale = static_cast<float>(parameters_.problem.scale);
#pragma unroll
    for (float& score : scores[0]) score *= scale;
    const std::int32_t begin = key * kConfig.k_tile;
    const tile::TileClass kind = tile::classify(shared_.mask.bands[0], tile_.first, tile_.last,
                                                begin, begin + kConfig.k_tile);
    if (kind == tile::kFull) {
      this->template absorb<false>(key, kind, 0, scores);
    } else {
      this->template absorb<true>(key, kind, 0, scores);
    }
    if (last) {
      close();
      __syncthreads();  // out has left the memory of Q
      fetch(next);
    } else {
      store_rows();
    }
  }

  // The tile of queries has seen all of its keys.
  __device__ __forceinline__ void close() {
    sm80::Epilogue<kConfig> epilogue(parameters_, shared_, out_, states_);
    const bool spoilt = __syncthreads_or(epilogue.has_non_finite());
    if (spoilt) this->begin_non_finite_pass();
    epilogue.finish();
    if (!spoilt) return;
    __syncthreads();
    if (threadIdx.x == 0) shared_.non_finite_pass = false;
  }

  // Calls function(which, pointer to out, pointer to the state) for those of the lane's rows that
  // there are.
  template <class Function>
  __device__ __forceinline__ void for_rows(const Function& function) {
    const std::int64_t first = given_.first_row(tile_.sequence, tile_.head);
    const std::int32_t row = sm80::lane_row<kConfig>(tile_, 0);
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      if (row + 8 * which > tile_.last) continue;
      const std::int64_t number = first + row + 8 * which;
      function(which,
               given_.out + number * given_.value_stride + tile::lane_column(threadIdx.x % 32),
               given_.states + 2 * number);
    }
  }

  // out and the states as they were stored; what is behind the end of the sequence is empty.
  __device__ __forceinline__ void load_rows() {
    this->clear();
    for_rows([&](int which, const float* out, const float* state) {
      const float2 both = *reinterpret_cast<const float2*>(state);
      states_[0].row[which].max = both.x;
      states_[0].row[which].sum = both.y;
#pragma unroll
      for (int chunk = 0; chunk < kConfig.columns / 8; ++chunk) {
        if (chunk * 8 >= given_.value_stride) continue;
        const float2 pair = *reinterpret_cast<const float2*>(out + 8 * chunk);
        out_[0][4 * chunk + 2 * which] = pair.x;
        out_[0][4 * chunk + 2 * which + 1] = pair.y;
      }
    });
  }

  // out times its sum, of which one lane of the row has all.
  __device__ __forceinline__ void multiply_rows() {
#pragma unroll
    for (int r = 0; r < kOut; ++r) out_[0][r] *= states_[0].row[tile::register_row(r)].sum;
    if (threadIdx.x % tile::kLanesPerRow == 0) return;
#pragma unroll
    for (math::SoftmaxState<float>& state : states_[0].row) state.sum = 0;
  }

  // out divided by its sum, and the states; a row that has seen nothing yet is 0.
  __device__ __forceinline__ void store_rows() {
    float factors[tile::kRowsPerLane];
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      math::SoftmaxState<float>& state = states_[0].row[which];
      state.sum = tile::quad_sum(state.sum);
      factors[which] = state.sum == 0 ? 0 : 1 / state.sum;
    }
    for_rows([&](int which, float* out, float* state) {
      if (threadIdx.x % tile::kLanesPerRow == 0) {
        *reinterpret_cast<float2*>(state) =
            make_float2(states_[0].row[which].max, states_[0].row[which].sum);
      }
#pragma unroll
      for (int chunk = 0; chunk < kConfig.columns / 8; ++chunk) {
        if (chunk * 8 >= given_.value_stride) continue;
        *reinterpret_cast<float2*>(out + 8 * chunk) =
            make_float2(out_[0][4 * chunk + 2 * which] * factors[which],
                        out_[0][4 * chunk + 2 * which + 1] * factors[which]);
      }
    });
  }

  const Parameters& given_;
};

// A block for each head of each sequence. The row and the type stand for the configuration.
template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kFlash1Kernels[kRow].config(kFp16).threads(),
                                  kFlash1Kernels[kRow].config(kFp16).blocks)
    flash1_forward_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kFlash1Kernels[kRow].config(kFp16);
  auto& shared = *reinterpret_cast<sm80::Shared<kConfig>*>(dynamic_shared());
  if (threadIdx.x == 0) {
    const sm80::Parameters& tiles = parameters.tiles;
    const std::int32_t heads = static_cast<std::int32_t>(tiles.problem.heads);
    const std::int32_t batch = static_cast<std::int32_t>(blockIdx.x) / heads;
    const std::int32_t head = static_cast<std::int32_t>(blockIdx.x) % heads;
    shared.tile.index = tiles.problem.q_packed ? tiles.packed.first(batch, head)
                                               : tiles.schedule.first(batch, head);
    sm80::describe_tile(tiles, {batch, head, 0}, kConfig.q_tile(), shared.tile);
  }
  __syncthreads();
  Flash1<kConfig>(parameters, shared).run();
}

template <int kRow, bool kFp16>
inline constexpr int kFlash1Bytes = sizeof(sm80::Shared<kFlash1Kernels[kRow].config(kFp16)>);

template <int kRow, bool kFp16>
cudaError_t Flash1Kernel<kRow, kFp16>::load() {
  static_assert(kFlash1Bytes<kRow, kFp16> <= kFlash1Kernels[kRow].shared_bytes,
                "A row of the table fits the shared memory that it is for.");
  return cuda::load(flash1_forward_kernel<kRow, kFp16>, kFlash1Bytes<kRow, kFp16>);
}

template <int kRow, bool kFp16>
cudaError_t Flash1Kernel<kRow, kFp16>::start(const Parameters& parameters, std::int64_t blocks,
                                             cudaStream_t stream) {
  constexpr int kThreads = kFlash1Kernels[kRow].config(kFp16).threads();
  return launch(flash1_forward_kernel<kRow, kFp16>, {blocks, kThreads, kFlash1Bytes<kRow, kFp16>},
                stream, parameters);
}

}  // namespace tilewise::cuda::ladder
