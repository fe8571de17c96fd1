// P V of a tile of keys with masked keys and non-finite elements of V (non_finite.cuh).
#pragma once

#include "cuda/sm80/non_finite.cuh"
#include "cuda/sm80/score_mod.cuh"
#include "cuda/tile/slow_path.cuh"

namespace tilewise::cuda::sm80 {

template <KernelConfig kConfig>
class MaskedValues : public ScoreMod<kConfig> {
 public:
  using Base = ScoreMod<kConfig>;
  using Base::kKeys;
  using Base::kKeySteps;
  using Base::kOutSteps;
  using Base::kPaired;
  using Base::kRowBlocks;
  using Base::kScores;
  using typename Base::Layout;
  using Chunks = OwnChunks<kConfig.fp16, kConfig.k_tile, kConfig.columns, kConfig.threads()>;

  __device__ MaskedValues(const Parameters& parameters, Shared<kConfig>& shared)
      : Base(parameters, shared) {}

 protected:
  using Base::out_;
  using Base::shared_;
  using Base::v_operand;

  // A barrier of the block that says whether V of a stage has non-finite elements. This thread's
  // copies have landed.
  __device__ __forceinline__ bool sync_and_find_non_finite(int stage) {
    return __syncthreads_or(Chunks::hold_non_finite(shared_.v[stage]));
  }

  // Which keys the lane's rows see: what a score of -inf hides is masked.
  __device__ __forceinline__ static VisibleKeys<kConfig> visible_keys(
      const float (&scores)[kRowBlocks][kScores]) {
    VisibleKeys<kConfig> keys = {};
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
      for (int r = 0; r < kScores; ++r) {
        std::uint32_t& bits = keys.rows[row_block][tile::register_row(r)];
        bits |= scores[row_block][r] == -math::Limits<float>::kInfinity
                    ? 0
                    : 1u << tile::FragmentLayout::bit(r);
      }
    }
    return keys;
  }

  // Before the product P V: remembers which keys the lane's rows see, and replaces the non-finite
  // elements of V by zero. All threads call it, after a barrier.
  __device__ __forceinline__ void hide_non_finite(std::int32_t key_tile, int stage,
                                                  const float (&scores)[kRowBlocks][kScores]) {
    set_visible(visible_keys(scores));
    if (ptx::opaque(threadIdx.x) == 0) shared_.non_finite_tile = key_tile;
    Chunks::zero_non_finite(shared_.v[stage]);
    __syncthreads();
  }

  // Where registers allow it, both at once: adds what the non-finite elements of V contribute to
  // the rows that see them, then replaces them by zero. The product P V follows.
  __device__ __forceinline__ void separate_non_finite(int stage, const VisibleKeys<kConfig>& keys) {
    if (threadIdx.x == 0) tile::count_slow_path(tile::SlowPath::kNonFiniteTile);
    add_non_finite(v_operand(stage), keys);
    __syncthreads();
    Chunks::zero_non_finite(shared_.v[stage]);
    __syncthreads();
  }

  // After the product P V, and after V has been loaded once more: adds what its non-finite elements
  // contribute to the rows that see them.
  __device__ __forceinline__ void add_visible_non_finite(int stage) {
    if (ptx::opaque(threadIdx.x) == 0) tile::count_slow_path(tile::SlowPath::kNonFiniteTile);
    add_non_finite(v_operand(stage), visible_of(0));
    if constexpr (kPaired)
      add_non_finite(v_operand(stage) + this->partner_key_offset(), visible_of(32));
  }

  // O += M N and O += M (-N'). M is 2^100 for a visible key, else 0; N is 2^100 for +infinity and
  // NaN, N' for -infinity and NaN. 2^200 overflows to infinity, and infinity - infinity is NaN.
  __device__ __forceinline__ void add_non_finite(std::uint32_t start,
                                                 const VisibleKeys<kConfig>& keys) {
#pragma unroll 1
    for (int step = 0; step < kKeySteps; ++step) {
      std::uint32_t visible[kRowBlocks][4];
#pragma unroll
      for (int i = 0; i < kRowBlocks * 4; ++i) {
        const std::uint32_t pair = keys.rows[i / 4][i % 2] >> (4 * step + i % 4 / 2 * 2);
        visible[i / 4][i % 4] = (pair & 1 ? kMarker : 0) | (pair & 2 ? kMarker << 16 : 0);
      }
#pragma unroll
      for (int n = 0; n < kOutSteps; ++n) {
        std::uint32_t b[4];
        ptx::ldmatrix_x4_trans(
            b, tile::step_address<kConfig.columns>(start, n) + step * 16 * Layout::kRowBytes);
        const bool own = has_non_finite<kConfig.fp16>(b[0]) || has_non_finite<kConfig.fp16>(b[1]) ||
                         has_non_finite<kConfig.fp16>(b[2]) || has_non_finite<kConfig.fp16>(b[3]);
        if (!__any_sync(~0u, own)) continue;
        multiply_markers<false>(visible, n, b);
        multiply_markers<true>(visible, n, b);
      }
    }
  }

 private:
  template <bool kNegative>
  __device__ __forceinline__ void multiply_markers(const std::uint32_t (&visible)[kRowBlocks][4],
                                                   int n, const std::uint32_t (&b)[4]) {
    std::uint32_t markers[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) markers[i] = markers_of<kConfig.fp16, kNegative>(b[i]);
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
      float* const out = &out_[row_block][8 * n];
      ptx::mma_m16n8k16<false>(out, visible[row_block], markers[0], markers[1]);
      ptx::mma_m16n8k16<false>(out + 4, visible[row_block], markers[2], markers[3]);
    }
  }

  __device__ __forceinline__ void set_visible(const VisibleKeys<kConfig>& keys) {
    if constexpr (Shared<kConfig>::kVisibleInShared) {
      shared_.visible[ptx::opaque(threadIdx.x)] = keys;
    } else {
      visible_ = keys;
    }
  }
  // The keys that the rows of this thread, or of one `partner` threads further, see.
  __device__ __forceinline__ VisibleKeys<kConfig> visible_of(std::uint32_t partner) {
    if constexpr (Shared<kConfig>::kVisibleInShared) {
      return shared_.visible[ptx::opaque(threadIdx.x) ^ partner];
    } else {
      return visible_;
    }
  }

  VisibleKeys<kConfig> visible_;  // unless it is in shared memory
};

}  // namespace tilewise::cuda::sm80
