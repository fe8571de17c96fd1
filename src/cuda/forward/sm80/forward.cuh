// The forward kernel for Ampere and later: FlashAttention-2 (arXiv 2307.08691), Algorithm 1. A
// block computes one tile of queries; its warps share K and V and split the rows.
#pragma once

#include "cuda/forward/sm80/kernel_table.h"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/sm80/epilogue.cuh"
#include "cuda/sm80/large_values.cuh"
#include "cuda/sm80/paged_tile.cuh"
#include "cuda/sm80/softmax_step.cuh"

namespace tilewise::cuda::sm80 {

template <KernelConfig kConfig>
class Forward : public SoftmaxStep<kConfig> {
 public:
  using Step = SoftmaxStep<kConfig>;
  using Copy = TileCopy<kConfig.k_tile, kConfig.columns, kConfig.threads()>;

  __device__ Forward(const Parameters& parameters, Shared<kConfig>& shared)
      : Step(parameters, shared),
        destination_(ptx::opaque(ptx::shared_address(shared_.k[0]) + Copy::tile_offset())),
        sources_{tile_.k.first + Copy::tensor_offset(parameters.problem.k.row),
                 tile_.v.first + Copy::tensor_offset(parameters.problem.v.row)} {
    if constexpr (Shared<kConfig>::kSourcesInShared) shared_.sources[threadIdx.x] = sources_;
    if constexpr (Shared<kConfig>::kDestinationsInShared)
      shared_.destinations[threadIdx.x] = destination_;
  }

  __device__ __forceinline__ void run() {
    load_tile<kConfig.q_tile(), kConfig.columns, kConfig.threads()>(tile_.q, tile_.first,
                                                                    shared_.q);
    ptx::cp_async_commit();
    if (threadIdx.x == 0) {
      this->shift_probs(0);
      shared_.has_zeroed_values = false;
    }
    std::int32_t last = mask_.build();
    Epilogue<kConfig> epilogue(parameters_, shared_, out_, states_);
    // The first key of the last tile stands for all of V.
    bool is_large = !kConfig.fp16 && samples_large(tile_.v, last * kConfig.k_tile, v_offsets());
    for (;;) {
      attend(last, is_large);
      if (!has_overflowed(epilogue)) break;
      if (threadIdx.x == 0) tile::count_slow_path(tile::SlowPath::kSecondPass);
      is_large = true;
      last = mask_.last_tile();  // again: the loop has no register for it
    }
    this->load_maxima();
    if (shared_.has_zeroed_values) add_zeroed_values();
    epilogue.finalise_and_store();
  }

 private:
  using Step::clear;
  using Step::kRowBlocks;
  using Step::kScores;
  using Step::kSteps;
  using Step::load_q_operand;
  using Step::mask_;
  using Step::out_;
  using Step::parameters_;
  using Step::q_;
  using Step::q_operand;
  using Step::shared_;
  using Step::states_;
  using Step::tile_;

  // Reduces the row sums. Says whether sums of P V have overflowed: out is not finite, and V has
  // large numbers.
  __device__ __forceinline__ bool has_overflowed(Epilogue<kConfig>& epilogue) {
    if constexpr (kConfig.fp16) {
      epilogue.reduce_sums();
      return false;
    } else {
      if (!__syncthreads_or(epilogue.has_non_finite_out()) || shared_.prob_shift > 0) return false;
      if (threadIdx.x == 0) tile::count_slow_path(tile::SlowPath::kScannedValues);
      return hold_large<kConfig.threads()>(tile_.v, shared_.mask.range, v_offsets());
    }
  }

  // Computes out and the states of its rows, over the tiles of keys from `key_tile` down to the
  // first. `is_large`: this thread has seen a large element of V.
  __device__ __forceinline__ void attend(std::int32_t key_tile, bool is_large) {
    clear();
    if (key_tile < 0) {
      ptx::cp_async_wait<0>();
      return __syncthreads();  // as before the first tile: what the first threads wrote is visible
    }
    fetch_last_k(key_tile);
    if constexpr (kConfig.stages == 2) fetch_last_v(key_tile);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    sync_and_set_shift(is_large);
    prepare_q();
    for (int stage = 0; key_tile >= 0; stage = (stage + 1) % kConfig.stages) {
      const TileRanges tiles = shared_.mask.tiles;
      const std::int32_t next = mask_.previous_tile(tiles, key_tile);
      const tile::TileClass tile_class = mask_.tile_class(tiles, key_tile);
      ptx::cp_async_wait<0>();
      sync_values(kConfig.stages == 2 && this->may_hide_keys(tile_class), stage);
      prefetch(key_tile, next, stage);
      step(key_tile, tile_class, next, stage);
      key_tile = next;
    }
  }

  // A tile of keys: Algorithm 1, lines 8 to 10.
  __device__ __forceinline__ void step(std::int32_t key_tile, tile::TileClass tile_class,
                                       std::int32_t next, int stage) {
    float scores[kRowBlocks][kScores];
    tile::ExactMax updates[kRowBlocks];
    multiply_qk_and_update_max(key_tile, tile_class, next, stage, scores, updates);
    if (is_masked(tile_class) || this->must_be_careful(updates)) {
      this->careful_softmax_and_multiply_pv(key_tile, stage, updates, scores);
    } else {
      this->softmax_and_multiply_pv(key_tile, stage, updates, scores);
    }
  }

  // Whether a mask or a score mod applies to a tile of keys.
  __device__ __forceinline__ static bool is_masked(tile::TileClass tile_class) {
    return kConfig.score_mod || tile_class != tile::kFull;
  }

  // S = Q K^T, m = max(m, rowmax(S)).
  __device__ __forceinline__ void multiply_qk_and_update_max(
      std::int32_t key_tile, tile::TileClass tile_class, std::int32_t next, int stage,
      float (&scores)[kRowBlocks][kScores], tile::ExactMax (&updates)[kRowBlocks]) {
    const bool hides_keys = this->may_hide_keys(tile_class);
    this->multiply_qk(stage, scores);
    if constexpr (Step::kPaired) {
      if (is_masked(tile_class)) this->apply_score_mod_and_mask(key_tile, tile_class, scores);
      tile::RowMax maxima[kRowBlocks];
      this->publish_maxima(scores, maxima);
      wait_for_v_and_prefetch_k(next, hides_keys);
      this->update_max_of_pair(maxima, updates);
    } else {
      if constexpr (kConfig.stages == 1) wait_for_v_and_prefetch_k(next, hides_keys);
      if (is_masked(tile_class)) this->apply_score_mod_and_mask(key_tile, tile_class, scores);
      this->update_max(scores, updates);
    }
  }

  // Starts the next copy. K of this tile has landed, and all warps are done with the tile before.
  // With two stages V has landed, too, and the copies of the next tile overlap with this one. With
  // one stage the copy of V overlaps with Q K^T.
  __device__ __forceinline__ void prefetch(std::int32_t key_tile, std::int32_t next, int stage) {
    if constexpr (kConfig.stages == 2) {
      if (next < 0) return;
      fetch_k(next, stage ^ 1);
      fetch_v(next, stage ^ 1);
    } else {
      fetch_v(key_tile, 0);
    }
    ptx::cp_async_commit();
  }

  // With one stage, after Q K^T: V has landed and no warp reads K any more, so that the copy of the
  // next K starts.
  __device__ __forceinline__ void wait_for_v_and_prefetch_k(std::int32_t next, bool hides_keys) {
    ptx::cp_async_wait<0>();
    sync_values(hides_keys, 0);
    if (next >= 0) fetch_k(next, 0);
    ptx::cp_async_commit();
  }

  // A barrier. `hides_keys`: V has landed, and keys of it may be masked: its non-finite elements
  // become zero.
  __device__ __forceinline__ void sync_values(bool hides_keys, int stage) {
    if (!hides_keys) return __syncthreads();
    if (!this->sync_and_find_non_finite(stage)) return;
    if (ptx::opaque(threadIdx.x) == 0) shared_.has_zeroed_values = true;
    this->zero_non_finite(stage);
  }

  // After the last tile of keys: adds what the elements of V that have counted as zero contribute
  // to the rows that see them.
  __device__ __forceinline__ void add_zeroed_values() {
    const TileRanges tiles = shared_.mask.tiles;
    std::int32_t key_tile = mask_.last_tile();
#pragma unroll 1
    for (; key_tile >= 0; key_tile = mask_.previous_tile(tiles, key_tile)) {
      if (!this->may_hide_keys(mask_.tile_class(tiles, key_tile))) continue;
      __syncthreads();  // no warp reads the K and V before any more
      if constexpr (kConfig.score_mod) fetch_last_k(key_tile);
      fetch_last_v(key_tile);
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();
      if (!this->sync_and_find_non_finite(0)) continue;
      if constexpr (kConfig.score_mod) {
        float scores[kRowBlocks][kScores];
        this->multiply_qk(0, scores);
        this->apply_score_mod_and_mask(key_tile, mask_.tile_class(tiles, key_tile), scores);
        this->add_visible_non_finite(0, this->visible_keys(scores));
      } else {
        this->add_visible_non_finite(key_tile, 0);
      }
    }
  }

  // A barrier, before the first tile of keys. If any thread has seen a large element of V, probs
  // become smaller; the barriers of the loop follow before a thread reads the shift.
  __device__ __forceinline__ void sync_and_set_shift(bool is_large) {
    if constexpr (kConfig.fp16) return __syncthreads();
    const bool any_large = __syncthreads_or(is_large);
    if (any_large && ptx::opaque(threadIdx.x) == 0)
      this->shift_probs(prob_shift(static_cast<std::int32_t>(tile_.sequence.k_len)));
  }

  // Start the copy of a tile of K or V. A tile of K that precedes another one is inside of the
  // tensor.
  __device__ __forceinline__ void fetch_k(std::int32_t key_tile, int stage) {
    fetch_k(key_tile, stage, parameters_.full_rows.k);
  }
  __device__ __forceinline__ void fetch_v(std::int32_t key_tile, int stage) {
    bool inside = parameters_.full_rows.v;
    if constexpr (kConfig.stages == 1) inside &= (key_tile + 1) * kConfig.k_tile <= tile_.v.count;
    fetch_v(key_tile, stage, inside);
  }
  // Start the copy of any tile into the first stage.
  __device__ __forceinline__ void fetch_last_k(std::int32_t key_tile) {
    const bool inside = (key_tile + 1) * kConfig.k_tile <= tile_.k.count;
    fetch_k(key_tile, 0, parameters_.full_rows.k && inside);
  }
  __device__ __forceinline__ void fetch_last_v(std::int32_t key_tile) {
    const bool inside = (key_tile + 1) * kConfig.k_tile <= tile_.v.count;
    fetch_v(key_tile, 0, parameters_.full_rows.v && inside);
  }
  // `inside`: the tile lies inside of the tensor.
  __device__ __forceinline__ void fetch_k(std::int32_t key_tile, int stage, bool inside) {
    const std::int64_t stride = parameters_.problem.k.row;
    const std::uint16_t* const from = sources().k + first_key(key_tile) * stride;
    const std::uint32_t address = destination() + stage * kConfig.k_bytes();
    if (inside) return Copy::copy(from, stride, address);
    if (parameters_.pages.present())
      return fetch_pages(tile_.k, k_offsets(), key_tile, address, shared_.k[stage]);
    fetch_edge(tile_.k, key_tile, from, address, shared_.k[stage]);
  }
  __device__ __forceinline__ void fetch_v(std::int32_t key_tile, int stage, bool inside) {
    const std::int64_t stride = parameters_.problem.v.row;
    const std::uint16_t* const from = sources().v + first_key(key_tile) * stride;
    const std::uint32_t address = destination() + (kConfig.stages + stage) * kConfig.k_bytes();
    if (inside) return Copy::copy(from, stride, address);
    if (parameters_.pages.present())
      return fetch_pages(tile_.v, v_offsets(), key_tile, address, shared_.v[stage]);
    fetch_edge(tile_.v, key_tile, from, address, shared_.v[stage]);
  }
  __device__ __forceinline__ static void fetch_edge(const Rows& rows, std::int32_t key_tile,
                                                    const std::uint16_t* from,
                                                    std::uint32_t address, unsigned char* to) {
    // The thread's place is computed each time: the loop has no register for it.
    load_edge<kConfig.k_tile, kConfig.columns, kConfig.threads()>(
        rows, key_tile * kConfig.k_tile, from, address, to, ptx::opaque(threadIdx.x));
  }
  __device__ __forceinline__ static void fetch_pages(const Rows& rows, const KeyOffsets& offsets,
                                                     std::int32_t key_tile, std::uint32_t address,
                                                     unsigned char* to) {
    load_pages<kConfig.k_tile, kConfig.columns, kConfig.threads()>(
        rows, offsets, key_tile * kConfig.k_tile, address, to, ptx::opaque(threadIdx.x));
  }
  __device__ __forceinline__ KeyOffsets k_offsets() const {
    return {parameters_.pages, parameters_.problem.k, tile_.sequence.batch};
  }
  __device__ __forceinline__ KeyOffsets v_offsets() const {
    return {parameters_.pages, parameters_.problem.v, tile_.sequence.batch};
  }
  __device__ __forceinline__ static std::int64_t first_key(std::int32_t key_tile) {
    return static_cast<std::uint32_t>(key_tile * kConfig.k_tile);
  }
  __device__ __forceinline__ ThreadSources sources() const {
    return Shared<kConfig>::kSourcesInShared ? shared_.sources[ptx::opaque(threadIdx.x)] : sources_;
  }

  __device__ __forceinline__ std::uint32_t destination() const {
    return Shared<kConfig>::kDestinationsInShared ? shared_.destinations[ptx::opaque(threadIdx.x)]
                                                  : destination_;
  }

  // Q has landed: loads it into registers, if it stays there.
  __device__ __forceinline__ void prepare_q() {
    if constexpr (kConfig.q_registers) {
      const auto queries = q_operand();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int row_block = 0; row_block < kRowBlocks; ++row_block)
          load_q_operand(queries, step, row_block, q_[step][row_block]);
      }
    }
  }

  std::uint32_t destination_;  // address of the thread's first chunk in the first stage of K
  ThreadSources sources_;
};

// The kernel of a row of the table. Its template parameter is the row, not the KernelConfig: nvcc
// 13 gives a kernel whose template parameter is a struct a name that does not compile.
template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kKernels[kRow].config(kFp16).threads(),
                                  kKernels[kRow].config(kFp16).blocks)
    forward_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config(kFp16);
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(dynamic_shared());
  // The grid is an upper bound: a batch of different lengths may have fewer tiles.
  if (parameters.problem.varlen_q() &&
      static_cast<std::int32_t>(blockIdx.x) >= parameters.packed.count())
    return;
  if (threadIdx.x == 0) {
    load_work_tile(parameters, static_cast<std::int32_t>(blockIdx.x), kConfig.q_tile(),
                   shared.tile);
  }
  __syncthreads();
  Forward<kConfig>(parameters, shared).run();
}

template <int kRow, bool kFp16>
inline constexpr int kSharedBytes = sizeof(Shared<kKernels[kRow].config(kFp16)>);

template <int kRow, bool kFp16>
cudaError_t ForwardKernel<kRow, kFp16>::load() {
  static_assert(kSharedBytes<kRow, kFp16> <= kKernels[kRow].shared_bytes,
                "A row of the table fits the shared memory that it is for.");
  return cuda::load(forward_kernel<kRow, kFp16>, kSharedBytes<kRow, kFp16>);
}

template <int kRow, bool kFp16>
cudaError_t ForwardKernel<kRow, kFp16>::start(const Parameters& parameters, std::int64_t blocks,
                                              cudaStream_t stream) {
  constexpr int kThreads = kKernels[kRow].config(kFp16).threads();
  return launch(forward_kernel<kRow, kFp16>, {blocks, kThreads, kSharedBytes<kRow, kFp16>}, stream,
                parameters);
}

}  // namespace tilewise::cuda::sm80
