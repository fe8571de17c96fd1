// The forward kernel of every GPU since Ampere: FlashAttention-2 (arXiv 2307.08691), Algorithm 1. A
// block computes one tile of queries; its warps share K and V and split the rows.
#pragma once

#include "cuda/forward/sm80/kernel_table.h"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/sm80/epilogue.cuh"
#include "cuda/sm80/tile_step.cuh"

namespace tilewise::cuda::sm80 {

template <KernelConfig kConfig>
class Forward : public TileStep<kConfig> {
 public:
  using Step = TileStep<kConfig>;
  using Part = Share<kConfig.k_tile, kConfig.columns, kConfig.threads()>;

  __device__ Forward(const Parameters& parameters, Shared<kConfig>& shared)
      : Step(parameters, shared),
        copied_(ptx::opaque(ptx::shared_address(shared_.k[0]) + Part::place())),
        from_{tile_.k.first + Part::offset(parameters.problem.k.row),
              tile_.v.first + Part::offset(parameters.problem.v.row)} {
    if constexpr (Shared<kConfig>::kKeepsFrom) shared_.from[threadIdx.x] = from_;
  }

  __device__ __forceinline__ void run() {
    load_tile<kConfig.q_tile(), kConfig.columns, kConfig.threads()>(tile_.q, tile_.first,
                                                                    shared_.q);
    ptx::cp_async_commit();
    if (threadIdx.x == 0) shared_.non_finite_pass = false;
    std::int32_t last = mask_.open();
    Epilogue<kConfig> epilogue(parameters_, shared_, out_, states_);
    bool again;
    do {
      attend(last);
      const bool was_non_finite_pass = shared_.non_finite_pass;
      again = __syncthreads_or(epilogue.has_non_finite()) && !was_non_finite_pass;
      if (again) {
        this->begin_non_finite_pass();
        last = mask_.last();
      }
    } while (again);
    epilogue.finish();
  }

 private:
  using Step::clear;
  using Step::kParts;
  using Step::kScores;
  using Step::kSteps;
  using Step::load_queries;
  using Step::mask_;
  using Step::out_;
  using Step::parameters_;
  using Step::q_;
  using Step::queries_start;
  using Step::shared_;
  using Step::states_;
  using Step::tile_;

  // out and the states of its rows, tiles of keys from the last, `key`, to the first. The
  // non_finite_pass pass takes operands that are not finite for zero and notes the rows that see
  // one; all other rows get the same bits.
  __device__ __forceinline__ void attend(std::int32_t key) {
    clear();
    if (key < 0) {
      ptx::cp_async_wait<0>();
      return __syncthreads();  // as before the first tile: what the first threads wrote is there
    }
    this->load_k(key, 0);
    if constexpr (kConfig.stages == 2) this->load_v(key, 0);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    __syncthreads();
    take_queries();
    for (int stage = 0; key >= 0; stage = (stage + 1) % kConfig.stages) {
      const TileRanges tiles = shared_.mask.tiles;
      const std::int32_t next = mask_.before(tiles, key);
      ptx::cp_async_wait<0>();
      __syncthreads();
      prefetch(key, next, stage);
      const tile::TileClass kind = mask_.kind(tiles, key);
      // Each with its own code: a branch inside would keep products and exponentials apart.
      if (kConfig.score_mod || kind != tile::kFull) {
        step<true>(key, kind, next, stage);
      } else {
        step<false>(key, kind, next, stage);
      }
      key = next;
    }
  }

  // A tile of keys: Algorithm 1, lines 8 to 10. `kMasked`: a mask or a score rule is to be applied.
  template <bool kMasked>
  __device__ __forceinline__ void step(std::int32_t key, tile::TileClass kind, std::int32_t next,
                                       int stage) {
    if (kMasked && shared_.non_finite_pass) clean_stage(stage);
    float scores[kParts][kScores];
    this->multiply_scores(stage, scores);
    if constexpr (Step::kPaired) {
      tile::RowMax maxima[kParts];
      this->template give_maxima<kMasked>(key, kind, scores, maxima);
      exchange(next);
      tile::Anchors anchors[kParts];
      this->take_maxima(maxima, anchors);
      this->absorb(key, stage, anchors, scores);
    } else {
      if constexpr (kConfig.stages == 1) exchange(next);
      this->template absorb<kMasked>(key, kind, stage, scores);
    }
  }

  // K of this tile is there, and everybody is done with the one before it. Two stages: V is there
  // too, and the next tile comes while this one is computed. One: V comes during the product with
  // K.
  __device__ __forceinline__ void prefetch(std::int32_t key, std::int32_t next, int stage) {
    if constexpr (kConfig.stages == 2) {
      if (next < 0) return;
      fetch_k(next, stage ^ 1);
      fetch_v(next, stage ^ 1);
    } else {
      fetch_v(key, 0);
    }
    ptx::cp_async_commit();
  }

  // One stage: V is there and nobody reads K any more, so that the next one comes.
  __device__ __forceinline__ void exchange(std::int32_t next) {
    ptx::cp_async_wait<0>();
    __syncthreads();
    if (next >= 0) fetch_k(next, 0);
    ptx::cp_async_commit();
  }

  // A tile of K, of V on its way: of K one before another, which is inside of the tensor.
  __device__ __forceinline__ void fetch_k(std::int32_t key, int stage) {
    const std::int64_t stride = parameters_.problem.k.row;
    const std::uint16_t* const own = from().k + row_of(key) * stride;
    const std::uint32_t address = copied_ + stage * kConfig.k_bytes();
    if (parameters_.whole.k) return Part::copy(own, stride, address);
    load_edge<kConfig.k_tile, kConfig.columns, kConfig.threads()>(tile_.k, key * kConfig.k_tile,
                                                                  own, address, shared_.k[stage]);
  }
  __device__ __forceinline__ void fetch_v(std::int32_t key, int stage) {
    const std::int64_t stride = parameters_.problem.v.row;
    bool inside = parameters_.whole.v;
    if constexpr (kConfig.stages == 1) inside &= (key + 1) * kConfig.k_tile <= tile_.v.count;
    const std::uint16_t* const own = from().v + row_of(key) * stride;
    const std::uint32_t address = copied_ + (kConfig.stages + stage) * kConfig.k_bytes();
    if (inside) return Part::copy(own, stride, address);
    load_edge<kConfig.k_tile, kConfig.columns, kConfig.threads()>(tile_.v, key * kConfig.k_tile,
                                                                  own, address, shared_.v[stage]);
  }
  __device__ __forceinline__ static std::int64_t row_of(std::int32_t key) {
    return static_cast<std::uint32_t>(key * kConfig.k_tile);
  }
  __device__ __forceinline__ From from() const {
    return Shared<kConfig>::kKeepsFrom ? shared_.from[threadIdx.x] : from_;
  }

  // Q is there.
  __device__ __forceinline__ void take_queries() {
    if (shared_.non_finite_pass) {
      clean_tile<kConfig.fp16, kConfig.q_tile(), kConfig.columns, kConfig.threads()>(
          shared_.q, shared_.non_finite_row);
      __syncthreads();
    }
    if constexpr (kConfig.q_registers) {
      const std::uint32_t start = queries_start();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) load_queries(start, step, part, q_[step][part]);
      }
    }
  }

  // ---- the non_finite_pass pass ----

  // Operands of K and V that are not finite become zero; both are there afterwards.
  __device__ __forceinline__ void clean_stage(int stage) {
    for (int i = threadIdx.x; i < kConfig.k_tile; i += kConfig.threads())
      shared_.non_finite_key[i] = 0;
    ptx::cp_async_wait<0>();
    __syncthreads();
    for (int which = 0; which < 2; ++which) {
      clean_tile<kConfig.fp16, kConfig.k_tile, kConfig.columns, kConfig.threads()>(
          which == 0 ? shared_.k[stage] : shared_.v[stage], shared_.non_finite_key);
    }
    __syncthreads();
  }

  std::uint32_t copied_;  // where the thread's first chunk goes in the first stage of K
  From from_;
};

// The kernel of a row of the table. nvcc 13 gives a kernel whose template parameter is a struct a
// name that does not compile, so the row stands for it.
template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kKernels[kRow].config(kFp16).threads(),
                                  kKernels[kRow].config(kFp16).blocks)
    forward_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config(kFp16);
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(dynamic_shared());
  // A packed batch may have less work than the host's bound.
  if (parameters.problem.q_packed &&
      static_cast<std::int32_t>(blockIdx.x) >= parameters.packed.count())
    return;
  if (threadIdx.x == 0) {
    find_tile(parameters, static_cast<std::int32_t>(blockIdx.x), kConfig.q_tile(), shared.tile);
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
