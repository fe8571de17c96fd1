// FlashAttention-1 (arXiv 2205.14135), Algorithm 2. A block computes a head, with tiles of keys in
// the outer loop and tiles of queries in the inner one. Each pair of tiles loads out and the states
// of its rows from global memory and stores them again. out there is always normalised for the keys
// so far.
#pragma once

#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/ladder/kernel_table.h"
#include "cuda/ladder/parameters.h"
#include "cuda/sm80/epilogue.cuh"
#include "cuda/sm80/large_values.cuh"
#include "cuda/sm80/softmax_step.cuh"
#include "math/integer.h"

namespace tilewise::cuda::ladder {

template <KernelConfig kConfig>
class Flash1 : public sm80::SoftmaxStep<kConfig> {
 public:
  using Step = sm80::SoftmaxStep<kConfig>;
  static_assert(Step::kRowBlocks == 1, "A lane has two rows.");

  __device__ Flash1(const Parameters& parameters, sm80::Shared<kConfig>& shared)
      : Step(parameters.tiles, shared), ladder_(parameters) {}

  // The work tile is the head's first one.
  __device__ __forceinline__ void run() {
    if (threadIdx.x < 32) mask_.build_by_warp();
    // The first key stands for all of V.
    bool is_large = !kConfig.fp16 && sm80::samples_large(tile_.v, 0);
    for (;;) {
      set_shift(is_large);
      const std::int32_t first_index = tile_.index;
      finalise_rows_without_keys(first_index);
      const bool non_finite_out = attend(first_index);
      if (!has_overflowed(non_finite_out)) return;
      if (threadIdx.x == 0) tile::count_slow_path(tile::SlowPath::kSecondPass);
      is_large = true;
      __syncthreads();  // no thread reads the work tile
      if (threadIdx.x == 0) shared_.tile.index = first_index;
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

  // If any thread has seen a large element of V, probs are smaller from now on. A barrier.
  __device__ __forceinline__ void set_shift(bool is_large) {
    const bool any_large = __syncthreads_or(is_large);
    if (threadIdx.x == 0) this->shift_probs(any_large ? sm80::prob_shift(keys()) : 0);
    __syncthreads();
  }

  // Says whether sums of P V have overflowed: out is not finite, and V has large numbers.
  __device__ __forceinline__ bool has_overflowed(bool non_finite_out) {
    if constexpr (kConfig.fp16) return false;
    if (!__syncthreads_or(non_finite_out) || shared_.prob_shift > 0) return false;
    if (threadIdx.x == 0) tile::count_slow_path(tile::SlowPath::kScannedValues);
    return sm80::hold_large<kConfig.threads()>(tile_.v, tile::Range{0, keys()});
  }

  // The loops of Algorithm 2. Returns whether a finished row of this thread has a finite sum and a
  // number that is not finite.
  __device__ __forceinline__ bool attend(std::int32_t first_index) {
    bool non_finite_out = false;
    for (std::int32_t key_tile = 0; key_tile * kConfig.k_tile < keys(); ++key_tile) {
      std::int32_t query_tile = next_visible_query_tile(0, key_tile);
      if (query_tile < 0) continue;
      __syncthreads();  // no warp reads the K, V and Q before these
      this->load_k(key_tile, 0);
      this->load_v(key_tile, 0);
      fetch_q(query_tile);
      ptx::cp_async_wait<0>();
      const bool non_finite = this->sync_and_find_non_finite(0);
      while (query_tile >= 0) {
        const std::int32_t next = next_visible_query_tile(query_tile + 1, key_tile);
        select_query_tile(first_index, query_tile);
        non_finite_out |= inner_step(query_tile, key_tile, next, non_finite);
        query_tile = next;
      }
    }
    return non_finite_out;
  }

  __device__ __forceinline__ std::int32_t queries() const {
    return static_cast<std::int32_t>(tile_.sequence.q_len);
  }
  __device__ __forceinline__ std::int32_t keys() const {
    return static_cast<std::int32_t>(tile_.sequence.k_len);
  }
  __device__ __forceinline__ std::int32_t last_row(std::int32_t query_tile) const {
    return math::min((query_tile + 1) * kConfig.q_tile(), queries()) - 1;
  }

  // The tiles of keys that some row of a tile of queries sees. There is one band, so that no tile
  // between them is empty.
  __device__ __forceinline__ tile::Range tiles_of(std::int32_t query_tile) const {
    const tile::Range keys =
        tile::keys_of(shared_.mask.bands[0], query_tile * kConfig.q_tile(), last_row(query_tile));
    if (keys.begin >= keys.end) return {0, 0};
    return {keys.begin / kConfig.k_tile, math::ceil_div(keys.end, kConfig.k_tile)};
  }

  // The first tile of queries from `query_tile` on that sees some of tile `key_tile`, or -1.
  __device__ __forceinline__ std::int32_t next_visible_query_tile(std::int32_t query_tile,
                                                                  std::int32_t key_tile) const {
    for (; query_tile * kConfig.q_tile() < queries(); ++query_tile) {
      const tile::Range tiles = tiles_of(query_tile);
      if (key_tile >= tiles.begin && key_tile < tiles.end) return query_tile;
    }
    return -1;
  }

  // Starts the copy of Q of a tile of queries, if there is one.
  __device__ __forceinline__ void fetch_q(std::int32_t query_tile) {
    if (query_tile >= 0) {
      sm80::load_tile<kConfig.q_tile(), kConfig.columns, kConfig.threads()>(
          tile_.q, query_tile * kConfig.q_tile(), shared_.q);
    }
    ptx::cp_async_commit();
  }

  // Makes `query_tile` the work tile, and waits for its Q.
  __device__ __forceinline__ void select_query_tile(std::int32_t first_index,
                                                    std::int32_t query_tile) {
    __syncthreads();  // no thread reads the work tile before any more
    if (threadIdx.x == 0) {
      shared_.tile.index = first_index + query_tile;
      shared_.tile.first = query_tile * kConfig.q_tile();
      shared_.tile.last = last_row(query_tile);
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
  }

  // Finalises the tiles of queries that see no key.
  __device__ void finalise_rows_without_keys(std::int32_t first_index) {
    for (std::int32_t query_tile = 0; query_tile * kConfig.q_tile() < queries(); ++query_tile) {
      const tile::Range tiles = tiles_of(query_tile);
      if (tiles.begin < tiles.end) continue;
      select_query_tile(first_index, query_tile);
      this->clear();
      finalise();
    }
  }

  // A pair of tiles: the inner loop of Algorithm 2, after K, V and Q have landed. `non_finite`: V
  // has non-finite elements. Returns whether the rows are finished, have finite sums, and numbers
  // that are not finite.
  __device__ __forceinline__ bool inner_step(std::int32_t query_tile, std::int32_t key_tile,
                                             std::int32_t next, bool non_finite) {
    const tile::Range tiles = tiles_of(query_tile);
    const bool last = key_tile == tiles.end - 1;
    if (key_tile == tiles.begin) {
      this->clear();
    } else {
      load_rows();
    }
    float scores[1][kScores];
    this->multiply_qk(0, scores);
    if (key_tile != tiles.begin) unnormalise_rows();
    __syncthreads();  // no warp reads Q any more
    if (!last) fetch_q(next);
    const float scale = static_cast<float>(parameters_.problem.scale);
#pragma unroll
    for (float& score : scores[0]) score *= scale;
    const std::int32_t begin = key_tile * kConfig.k_tile;
    const tile::TileClass tile_class = tile::classify(shared_.mask.bands[0], tile_.first,
                                                      tile_.last, begin, begin + kConfig.k_tile);
    softmax_and_multiply_pv(key_tile, tile_class, non_finite, scores);
    if (!last) {
      store_rows();
      return false;
    }
    const bool non_finite_out = finalise();
    __syncthreads();  // the output staged in the memory of Q is stored
    fetch_q(next);
    return non_finite_out;
  }

  // P = exp(S - m), O += P V. Non-finite elements of V that a row may not see count as zero; after
  // the product V is loaded again, for the tiles of queries that follow, and what the rows see of
  // them is added.
  __device__ __forceinline__ void softmax_and_multiply_pv(std::int32_t key_tile,
                                                          tile::TileClass tile_class,
                                                          bool non_finite,
                                                          float (&scores)[1][kScores]) {
    const bool masked = tile_class != tile::kFull;
    if (masked && non_finite) this->zero_non_finite(0);
    if (masked) this->apply_score_mod_and_mask(key_tile, tile_class, scores);
    tile::ExactMax updates[1];
    this->update_max(scores, updates);
    if (masked || this->must_be_careful(updates)) {
      this->careful_softmax_and_multiply_pv(key_tile, 0, updates, scores);
    } else {
      Step::softmax_and_multiply_pv(key_tile, 0, updates, scores);
    }
    if (!masked || !non_finite) return;
    __syncthreads();
    this->load_v(key_tile, 0);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
    this->add_visible_non_finite(key_tile, 0);
  }

  // Finalises and stores the rows of a tile of queries after its last tile of keys. Returns whether
  // a row of this lane has a finite sum and a number that is not finite.
  __device__ __forceinline__ bool finalise() {
    sm80::Epilogue<kConfig> epilogue(parameters_, shared_, out_, states_);
    const bool non_finite_out = epilogue.has_non_finite_out();
    epilogue.finalise_and_store();
    return non_finite_out;
  }

  // Calls function(which, pointer to out, pointer to the state) for the lane's rows that exist.
  template <class Function>
  __device__ __forceinline__ void for_each_row(const Function& function) {
    const std::int64_t first = ladder_.first_row(tile_.sequence, tile_.head);
    const std::int32_t row = sm80::lane_row<kConfig>(tile_, 0);
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      if (row + 8 * which > tile_.last) continue;
      const std::int64_t number = first + row + 8 * which;
      function(which,
               ladder_.out + number * ladder_.value_stride + tile::lane_column(threadIdx.x % 32),
               ladder_.states + 2 * number);
    }
  }

  // Loads out and the states. Rows after the end of the sequence are empty.
  __device__ __forceinline__ void load_rows() {
    this->clear();
    for_each_row([&](int which, const float* out, const float* state) {
      const float2 both = *reinterpret_cast<const float2*>(state);
      states_[0].row[which].max = both.x;
      states_[0].row[which].sum = both.y;
#pragma unroll
      for (int chunk = 0; chunk < kConfig.columns / 8; ++chunk) {
        if (chunk * 8 >= ladder_.value_stride) continue;
        const float2 pair = *reinterpret_cast<const float2*>(out + 8 * chunk);
        out_[0][4 * chunk + 2 * which] = pair.x;
        out_[0][4 * chunk + 2 * which + 1] = pair.y;
      }
    });
  }

  // Multiplies out by the row sums. One lane of each row keeps the sum.
  __device__ __forceinline__ void unnormalise_rows() {
#pragma unroll
    for (int r = 0; r < kOut; ++r) out_[0][r] *= states_[0].row[tile::register_row(r)].sum;
    if (threadIdx.x % tile::kLanesPerRow == 0) return;
#pragma unroll
    for (math::SoftmaxState<float>& state : states_[0].row) state.sum = 0;
  }

  // Stores the states, and out divided by the row sums; 0 for a row that has seen no key yet.
  __device__ __forceinline__ void store_rows() {
    float factors[tile::kRowsPerLane];
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      math::SoftmaxState<float>& state = states_[0].row[which];
      state.sum = tile::quad_sum(state.sum);
      factors[which] = state.sum == 0 ? 0 : 1 / state.sum;
    }
    for_each_row([&](int which, float* out, float* state) {
      if (threadIdx.x % tile::kLanesPerRow == 0) {
        *reinterpret_cast<float2*>(state) =
            make_float2(states_[0].row[which].max, states_[0].row[which].sum);
      }
#pragma unroll
      for (int chunk = 0; chunk < kConfig.columns / 8; ++chunk) {
        if (chunk * 8 >= ladder_.value_stride) continue;
        *reinterpret_cast<float2*>(out + 8 * chunk) =
            make_float2(out_[0][4 * chunk + 2 * which] * factors[which],
                        out_[0][4 * chunk + 2 * which + 1] * factors[which]);
      }
    });
  }

  const Parameters& ladder_;
};

// A block computes a head of a sequence. The row and the type select the configuration.
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
    shared.tile.index = tiles.problem.varlen_q() ? tiles.packed.first(batch, head)
                                                 : tiles.schedule.first(batch, head);
    sm80::set_work_tile(tiles, {batch, head, 0}, kConfig.q_tile(), shared.tile);
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
