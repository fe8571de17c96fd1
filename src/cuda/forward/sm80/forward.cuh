// The forward kernel for Ampere and later: FlashAttention-2 (arXiv 2307.08691), Algorithm 1. A
// block computes one tile of queries; its warps share K and V and split the rows.
#pragma once

#include "cuda/forward/sm80/kernel_table.h"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/sm80/epilogue.cuh"
#include "cuda/sm80/non_finite.cuh"
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
  }

  __device__ __forceinline__ void run() {
    load_tile<kConfig.q_tile(), kConfig.columns, kConfig.threads()>(tile_.q, tile_.first,
                                                                    shared_.q);
    ptx::cp_async_commit();
    if (threadIdx.x == 0) shared_.non_finite_pass = false;
    std::int32_t last = mask_.build();
    Epilogue<kConfig> epilogue(parameters_, shared_, out_, states_);
    bool needs_non_finite_pass;
    do {
      attend(last);
      const bool was_non_finite_pass = shared_.non_finite_pass;
      needs_non_finite_pass = __syncthreads_or(epilogue.has_non_finite()) && !was_non_finite_pass;
      if (needs_non_finite_pass) {
        this->begin_non_finite_pass();
        last = mask_.last_tile();
      }
    } while (needs_non_finite_pass);
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

  // Computes out and the states of its rows, over the tiles of keys from `key_tile` down to the
  // first. The non-finite pass takes operands that are not finite for zero and flags the rows that
  // see one; all other rows get the same bits as in the first pass.
  __device__ __forceinline__ void attend(std::int32_t key_tile) {
    clear();
    if (key_tile < 0) {
      ptx::cp_async_wait<0>();
      return __syncthreads();  // as before the first tile: what the first threads wrote is visible
    }
    this->load_k(key_tile, 0);
    if constexpr (kConfig.stages == 2) this->load_v(key_tile, 0);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    __syncthreads();
    prepare_q();
    for (int stage = 0; key_tile >= 0; stage = (stage + 1) % kConfig.stages) {
      const TileRanges tiles = shared_.mask.tiles;
      const std::int32_t next = mask_.previous_tile(tiles, key_tile);
      ptx::cp_async_wait<0>();
      __syncthreads();
      prefetch(key_tile, next, stage);
      const tile::TileClass tile_class = mask_.tile_class(tiles, key_tile);
      // Two copies of the code: a branch inside would separate the products from the exponentials.
      if (kConfig.score_mod || tile_class != tile::kFull) {
        step<true>(key_tile, tile_class, next, stage);
      } else {
        step<false>(key_tile, tile_class, next, stage);
      }
      key_tile = next;
    }
  }

  // A tile of keys: Algorithm 1, lines 8 to 10. `kMasked`: a mask or a score mod applies to it.
  template <bool kMasked>
  __device__ __forceinline__ void step(std::int32_t key_tile, tile::TileClass tile_class,
                                       std::int32_t next, int stage) {
    if (kMasked && shared_.non_finite_pass) zero_non_finite_stage(stage);
    float scores[kRowBlocks][kScores];
    this->multiply_qk(stage, scores);  // S = Q K^T
    if constexpr (Step::kPaired) {
      tile::RowMax maxima[kRowBlocks];
      this->template publish_maxima<kMasked>(key_tile, tile_class, scores, maxima);
      wait_for_v_and_prefetch_k(next);
      tile::Anchors anchors[kRowBlocks];
      this->update_max_of_pair(maxima, anchors);
      this->softmax_and_multiply_pv(key_tile, stage, anchors, scores);  // P = exp(S - m), O += P V
    } else {
      if constexpr (kConfig.stages == 1) wait_for_v_and_prefetch_k(next);
      this->template softmax_and_multiply_pv<kMasked>(key_tile, tile_class, stage, scores);
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
  __device__ __forceinline__ void wait_for_v_and_prefetch_k(std::int32_t next) {
    ptx::cp_async_wait<0>();
    __syncthreads();
    if (next >= 0) fetch_k(next, 0);
    ptx::cp_async_commit();
  }

  // Start the copy of a tile of K or V. A tile of K that precedes another one is inside of the
  // tensor.
  __device__ __forceinline__ void fetch_k(std::int32_t key_tile, int stage) {
    const std::int64_t stride = parameters_.problem.k.row;
    const std::uint16_t* const from = sources().k + first_key(key_tile) * stride;
    const std::uint32_t address = destination_ + stage * kConfig.k_bytes();
    if (parameters_.full_rows.k) return Copy::copy(from, stride, address);
    load_edge<kConfig.k_tile, kConfig.columns, kConfig.threads()>(
        tile_.k, key_tile * kConfig.k_tile, from, address, shared_.k[stage]);
  }
  __device__ __forceinline__ void fetch_v(std::int32_t key_tile, int stage) {
    const std::int64_t stride = parameters_.problem.v.row;
    bool inside = parameters_.full_rows.v;
    if constexpr (kConfig.stages == 1) inside &= (key_tile + 1) * kConfig.k_tile <= tile_.v.count;
    const std::uint16_t* const from = sources().v + first_key(key_tile) * stride;
    const std::uint32_t address = destination_ + (kConfig.stages + stage) * kConfig.k_bytes();
    if (inside) return Copy::copy(from, stride, address);
    load_edge<kConfig.k_tile, kConfig.columns, kConfig.threads()>(
        tile_.v, key_tile * kConfig.k_tile, from, address, shared_.v[stage]);
  }
  __device__ __forceinline__ static std::int64_t first_key(std::int32_t key_tile) {
    return static_cast<std::uint32_t>(key_tile * kConfig.k_tile);
  }
  __device__ __forceinline__ ThreadSources sources() const {
    return Shared<kConfig>::kSourcesInShared ? shared_.sources[threadIdx.x] : sources_;
  }

  // Q has landed: loads it into registers, if it stays there.
  __device__ __forceinline__ void prepare_q() {
    if (shared_.non_finite_pass) {
      zero_non_finite<kConfig.fp16, kConfig.q_tile(), kConfig.columns, kConfig.threads()>(
          shared_.q, shared_.non_finite_row);
      __syncthreads();
    }
    if constexpr (kConfig.q_registers) {
      const std::uint32_t start = q_operand();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int row_block = 0; row_block < kRowBlocks; ++row_block)
          load_q_operand(start, step, row_block, q_[step][row_block]);
      }
    }
  }

  // The non-finite pass: waits for K and V of a stage, and replaces their non-finite elements by
  // zero.
  __device__ __forceinline__ void zero_non_finite_stage(int stage) {
    for (int i = threadIdx.x; i < kConfig.k_tile; i += kConfig.threads())
      shared_.non_finite_key[i] = 0;
    ptx::cp_async_wait<0>();
    __syncthreads();
    for (int which = 0; which < 2; ++which) {
      zero_non_finite<kConfig.fp16, kConfig.k_tile, kConfig.columns, kConfig.threads()>(
          which == 0 ? shared_.k[stage] : shared_.v[stage], shared_.non_finite_key);
    }
    __syncthreads();
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
  // The grid is an upper bound: a packed batch may have fewer tiles.
  if (parameters.problem.q_packed &&
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
