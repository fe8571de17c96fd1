// The forward kernel for fp32: FlashAttention-2 (arXiv 2307.08691), Algorithm 1, with
// multiply-adds. A block computes one tile of queries; its warps share K and V and split the rows.
#pragma once

#include "cuda/forward/fp32/epilogue.cuh"
#include "cuda/forward/fp32/gemm.cuh"
#include "cuda/fp32/tile.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/sm80/large_values.cuh"
#include "cuda/sm80/mask_table.cuh"
#include "cuda/sm80/work_tile.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/exact_max.cuh"
#include "cuda/tile/score_mod.cuh"
#include "cuda/tile/slow_path.cuh"

namespace tilewise::cuda::fp32 {

template <KernelConfig kConfig>
class Forward {
 public:
  using Product = Gemm<kConfig>;
  static constexpr int kKeys = Product::kKeys;
  static constexpr int kScores = Product::kScores;
  static constexpr int kColumns = Product::kColumns;
  static constexpr int kRow = Product::kRow;
  static constexpr int kThreads = kConfig.threads();
  static constexpr int kTile = kConfig.k_tile;
  using Scores = ScoreLayout<kKeys>;
  static constexpr TileShape kQueryShape = {kConfig.q_tile(), kConfig.columns, kRow, kThreads, 1};
  static constexpr TileShape kKeyShape = {kTile, kConfig.columns, kRow, kThreads, kKeys};
  static constexpr TileShape kValueShape = {kTile, kConfig.columns, kConfig.columns, kThreads, 1};
  using KeyTiles = TileLoader<kKeyShape>;
  using ValueTiles = TileLoader<kValueShape>;

  __device__ Forward(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters),
        shared_(shared),
        tile_(shared.tile),
        mask_(parameters, tile_, shared.mask),
        k_loader_(tile_.k),
        v_loader_(tile_.v),
        k_destination_(ptx::opaque(ptx::shared_address(shared.k) + KeyTiles::tile_offset())),
        v_destination_(ptx::opaque(ptx::shared_address(shared.v) + ValueTiles::tile_offset())) {}

  __device__ __forceinline__ void run() {
    load_tile<kQueryShape>(tile_.q, tile_.first, shared_.q);
    ptx::cp_async_commit();
    if (threadIdx.x < 32) mask_.build_by_warp();
    if (threadIdx.x == 0) shared_.prob_shift = 0;
    __syncthreads();
    Epilogue<kConfig> epilogue(parameters_, shared_, out_, states_);
    // The first key of the last tile stands for all of V.
    bool is_large = sm80::samples_large(tile_.v, mask_.last_tile() * kTile);
    for (;;) {
      attend(is_large);
      if (!has_overflowed(epilogue)) break;
      if (threadIdx.x == 0) tile::count_slow_path(tile::SlowPath::kSecondPass);
      is_large = true;
    }
    load_maxima();
    epilogue.finalise_and_store();
  }

 private:
  // Reduces the row sums. Says whether sums of P V have overflowed: out is not finite, and V has
  // large numbers.
  __device__ __forceinline__ bool has_overflowed(Epilogue<kConfig>& epilogue) {
    if (!__syncthreads_or(epilogue.has_non_finite_out()) || shared_.prob_shift > 0) return false;
    if (threadIdx.x == 0) tile::count_slow_path(tile::SlowPath::kScannedValues);
    return sm80::hold_large<kThreads>(tile_.v, shared_.mask.range);
  }

  // Computes out and the states of its rows, from the last tile of keys to the first. `is_large`:
  // this thread has seen a large element of V.
  __device__ __forceinline__ void attend(bool is_large) {
    clear();
    const sm80::TileRanges tiles = shared_.mask.tiles;
    std::int32_t key_tile = mask_.last_tile();
    if (key_tile < 0) return ptx::cp_async_wait<0>();
    load_k(key_tile);
    if (__syncthreads_or(is_large) && threadIdx.x == 0)
      shared_.prob_shift = sm80::prob_shift(static_cast<std::int32_t>(tile_.sequence.k_len));
    while (key_tile >= 0) {
      const std::int32_t next = mask_.previous_tile(tiles, key_tile);
      wait_for_copies();  // K has landed, and no warp reads V any more
      load_v(key_tile);
      const tile::TileClass tile_class = mask_.tile_class(tiles, key_tile);
      if (kConfig.score_mod || tile_class != tile::kFull) {
        step<true>(key_tile, tile_class, next);
      } else {
        step<false>(key_tile, tile_class, next);
      }
      key_tile = next;
    }
  }

  // A tile of keys: Algorithm 1, lines 8 to 10. `kMasked`: a mask or a score mod applies to it.
  template <bool kMasked>
  __device__ __forceinline__ void step(std::int32_t key_tile, tile::TileClass tile_class,
                                       std::int32_t next) {
    float scores[kScores];
    Product::multiply_qk(shared_, tile_.k.columns, scores);  // S = Q K^T
    if constexpr (kMasked) apply_score_mod_and_mask(key_tile, tile_class, scores);
    if constexpr (kMasked) shared_.visible[threadIdx.x] = VisibleKeys<kScores>(scores);
    softmax(scores);  // P = exp(S - m)
    if constexpr (kConfig.score_mod) apply_dropout(key_tile, scores);
    wait_for_copies();  // V has landed, and no warp reads K any more
    if (next >= 0) load_k(next);
    if (kMasked && may_hide_keys(tile_class)) separate_non_finite();
    Product::multiply_pv(shared_, scores, out_);  // O += P V
  }

  // Whether a row of the block may see less than the whole tile. Dropped keys are visible: their
  // prob is 0, and 0 * NaN is NaN.
  __device__ __forceinline__ bool may_hide_keys(tile::TileClass tile_class) const {
    if (tile_class != tile::kFull) return true;
    return kConfig.score_mod &&
           (parameters_.problem.mask.present() || parameters_.problem.bias.present());
  }

  // If V has non-finite elements, adds what they contribute to the rows that see them, and replaces
  // them by zero: a masked prob is 0, but 0 * NaN is NaN. All threads call it, after a barrier.
  __device__ __forceinline__ void separate_non_finite() {
    if (!__syncthreads_or(holds_non_finite<kValueShape>(shared_.v))) return;
    if (threadIdx.x == 0) tile::count_slow_path(tile::SlowPath::kNonFiniteTile);
    const VisibleKeys<kScores> visible = shared_.visible[ptx::opaque(threadIdx.x)];
    Product::multiply_pv(shared_, visible, out_);
    __syncthreads();
    zero_non_finite<kValueShape>(shared_.v, [](int) {});
    __syncthreads();
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      states_[i] = math::empty_state<float>();
#pragma unroll
      for (float& x : out_[i]) x = 0;
    }
    store_maxima();
  }

  // The maxima of the rows lie in shared memory between the tiles of keys. One of the lanes that
  // share a row stores its max.
  __device__ __forceinline__ void load_maxima() {
    if constexpr (!Shared<kConfig>::kMaximaInShared) return;
    const float* const first = &shared_.maxima[warp_row() + lane_row(threadIdx.x % 32, 0)];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) states_[i].max = first[Scores::row_offset(i * kKeys)];
  }
  __device__ __forceinline__ void store_maxima() {
    if constexpr (!Shared<kConfig>::kMaximaInShared) return;
    __syncwarp();
    float* const first = &shared_.maxima[warp_row() + lane_row(threadIdx.x % 32, 0)];
    if (lane_across(threadIdx.x % 32) != 0) return;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) first[Scores::row_offset(i * kKeys)] = states_[i].max;
  }

  __device__ __forceinline__ void load_k(std::int32_t key_tile) {
    k_loader_.load(key_tile, shared_.k, k_destination_);
    ptx::cp_async_commit();
  }
  __device__ __forceinline__ void load_v(std::int32_t key_tile) {
    v_loader_.load(key_tile, shared_.v, v_destination_);
    ptx::cp_async_commit();
  }
  __device__ __forceinline__ void wait_for_copies() {
    ptx::cp_async_wait<0>();
    __syncthreads();
  }

  // The lane's first row in the sequence.
  __device__ __forceinline__ std::int32_t first_row() const {
    return tile_.first + warp_row() + lane_row(threadIdx.x % 32, 0);
  }
  // The lane's first key of a tile in the sequence.
  __device__ __forceinline__ std::int32_t first_key(std::int32_t key_tile) const {
    return key_tile * kTile + lane_across(threadIdx.x % 32) * kKeys;
  }

  __device__ __forceinline__ void apply_score_mod_and_mask(std::int32_t key_tile,
                                                           tile::TileClass tile_class,
                                                           float (&scores)[kScores]) {
    const std::int32_t row = first_row();
    const std::int32_t own_key = first_key(key_tile);
    std::uint32_t visible[kThreadRows];
    if (tile_class != tile::kFull) {
      mask_.mask_bits(row, Scores::row_offset(kKeys), tile::AdjacentColumns{own_key, kKeys},
                      visible);
    } else {
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i)
        visible[i] = row + Scores::row_offset(i * kKeys) <= tile_.last ? ~0u : 0u;
    }
    if constexpr (kConfig.score_mod) {
      const tile::Head head = tile::head_of(parameters_.problem, tile_.sequence.batch, tile_.head,
                                            static_cast<std::int32_t>(tile_.sequence.diagonal));
      tile::apply_score_mod<Scores, tile::ExactSoftcap>(parameters_.problem, parameters_.scaling,
                                                        parameters_.pair_loads, head, row, own_key,
                                                        scores, visible);
    }
    tile::apply_mask_bits<Scores>(scores, visible);
  }

  // m = max(m, rowmax(S)), P = exp(S - m), l = exp(m_old - m) l + rowsum(P), O = exp(m_old - m) O.
  // The exponent is one fused product, score * scale_log2 - anchor, where the anchor is
  // max * scale_log2, rounded once. The rounding multiplies the whole row by one factor, which
  // cancels in out; in lse it is half an ulp. A row whose anchor is huge subtracts its max from the
  // scores first (tile/exact_max.cuh).
  __device__ __forceinline__ void softmax(float (&scores)[kScores]) {
    const float scale_log2 = parameters_.scale_log2;
    const float shift = shared_.prob_shift;
    load_maxima();
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      float* const row = &scores[i * kKeys];
      float max = row[0];
#pragma unroll
      for (int n = 1; n < kKeys; ++n) max = fmaxf(max, row[n]);
#pragma unroll
      for (int step = 1; step < kAcross; step *= 2) {
        max = fmaxf(max, __shfl_xor_sync(~0u, max, step));
      }
      math::SoftmaxState<float>& state = states_[i];
      max = fmaxf(max, state.max);
      float anchor = __fmul_rn(math::anchor(max), scale_log2);
      float exponent = __fmul_rn(state.max, scale_log2) - anchor;
      if (__any_sync(~0u, tile::is_huge_exact(anchor))) {
        const bool huge = tile::is_huge_exact(anchor);
#pragma unroll
        for (int n = 0; n < kKeys; ++n) row[n] -= huge ? max : 0;
        if (huge) exponent = state.max == max ? 0 : (state.max - max) * scale_log2;
        if (huge) anchor = 0;
      }
      const float factor = exp2f(exponent);
      anchor += shift;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
        row[n] = exp2f(__fmaf_rn(row[n], scale_log2, -anchor));
        sum += row[n];
      }
      state = {max, math::multiply_add(state.sum, factor, sum)};
#pragma unroll
      for (float& x : out_[i]) x *= factor;  // rescale O
    }
    store_maxima();
  }

  // Probs that are kept get their factor 1 / (1 - p) here, not in the epilogue, where it would
  // multiply the rounding of sums that are denormal.
  __device__ __forceinline__ void apply_dropout(std::int32_t key_tile, float (&probs)[kScores]) {
    const Problem& problem = parameters_.problem;
    if (problem.dropout_p == 0) return;
    const math::DropoutRule rule =
        math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset);
    const float keep_scale = static_cast<float>(rule.keep_scale);
    const std::int64_t head = tile_.sequence.batch * problem.heads + tile_.head;
    const std::int32_t own_key = first_key(key_tile);
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const std::uint32_t kept =
          tile::kept_bits<kKeys>(rule, head, first_row() + Scores::row_offset(i * kKeys), own_key);
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
        float& prob = probs[i * kKeys + n];
        prob = (kept >> n & 1) != 0 ? prob * keep_scale : 0;
      }
    }
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  const WorkTile& tile_;
  sm80::Mask<kTile> mask_;
  KeyTiles k_loader_;
  ValueTiles v_loader_;
  std::uint32_t k_destination_;  // addresses of the thread's first chunk of a tile of K and of V
  std::uint32_t v_destination_;
  float out_[kThreadRows][kColumns];               // (rows, runs of 4 columns)
  math::SoftmaxState<float> states_[kThreadRows];  // `sum` is the lane's partial sum
};

// The kernel of a row of the table. Its template parameter is the row, not the KernelConfig: nvcc
// 13 gives a kernel whose template parameter is a struct a name that does not compile.
template <int kRow>
__global__ void __launch_bounds__(kKernels[kRow].config().threads(), kKernels[kRow].config().blocks)
    forward_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config();
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(dynamic_shared());
  // The grid is an upper bound: a batch of different lengths may have fewer tiles.
  if (parameters.problem.varlen_q() &&
      static_cast<std::int32_t>(blockIdx.x) >= parameters.packed.count())
    return;
  if (threadIdx.x == 0) {
    sm80::load_work_tile(parameters, static_cast<std::int32_t>(blockIdx.x), kConfig.q_tile(),
                         shared.tile);
  }
  __syncthreads();
  Forward<kConfig>(parameters, shared).run();
}

template <int kRow>
inline constexpr int kSharedBytes = sizeof(Shared<kKernels[kRow].config()>);

template <int kRow>
cudaError_t ForwardKernel<kRow>::load() {
  static_assert(kSharedBytes<kRow> <= kKernels[kRow].shared_bytes,
                "A row of the table fits the shared memory that it is for.");
  return cuda::load(forward_kernel<kRow>, kSharedBytes<kRow>);
}

template <int kRow>
cudaError_t ForwardKernel<kRow>::start(const Parameters& parameters, std::int64_t blocks,
                                       cudaStream_t stream) {
  constexpr int kThreads = kKernels[kRow].config().threads();
  return launch(forward_kernel<kRow>, {blocks, kThreads, kSharedBytes<kRow>}, stream, parameters);
}

}  // namespace tilewise::cuda::fp32
