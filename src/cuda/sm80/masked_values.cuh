// P V of a tile of keys with masked keys and non-finite elements of V (non_finite.cuh).
//
// The product finds zeros in place of non-finite elements. What they contribute to the rows that
// see them is added apart from the loop over the tiles of keys, which has no registers for it.
#pragma once

#include "cuda/sm80/non_finite.cuh"
#include "cuda/sm80/score_mod.cuh"
#include "cuda/tile/slow_path.cuh"

namespace tilewise::cuda::sm80 {

// The keys of a tile that a lane's rows see: bit n of a row stands for the n-th of the lane's
// columns.
template <KernelConfig kConfig>
struct VisibleKeys {
  std::uint32_t rows[kConfig.row_blocks * tile::kRowsPerLane];
};

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
  using Base::mask_;
  using Base::out_;
  using Base::shared_;
  using Base::tile_;
  using Base::v_operand;

  // A barrier of the block that says whether V of a stage has non-finite elements. This thread's
  // copies have landed.
  __device__ __forceinline__ bool sync_and_find_non_finite(int stage) {
    return __syncthreads_or(Chunks::hold_non_finite(shared_.v[stage]));
  }

  // Replaces the non-finite elements of V of a stage by zero. All threads call it, after a barrier.
  __device__ __forceinline__ void zero_non_finite(int stage) {
    Chunks::zero_non_finite(shared_.v[stage]);
    __syncthreads();
  }

  // The keys that the lane's rows see: what a score of -inf hides is masked.
  __device__ __forceinline__ static VisibleKeys<kConfig> visible_keys(
      const float (&scores)[kRowBlocks][kScores]) {
    VisibleKeys<kConfig> keys = {};
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
      for (int r = 0; r < kScores; ++r) {
        std::uint32_t& bits = keys.rows[2 * row_block + tile::register_row(r)];
        bits |= scores[row_block][r] == -math::Limits<float>::kInfinity
                    ? 0
                    : 1u << tile::FragmentLayout::bit(r);
      }
    }
    return keys;
  }

  // The keys that the lane's rows see through the structured mask, among the warp's half of the
  // tile or, in a pair, its partner's.
  __device__ __forceinline__ VisibleKeys<kConfig> visible_keys(std::int32_t key_tile, int half) {
    VisibleKeys<kConfig> keys;
    mask_.mask_bits(lane_row<kConfig>(tile_, 0), 8,
                    tile::FragmentColumns{key_tile * kConfig.k_tile + half * kKeys,
                                          tile::lane_column(threadIdx.x % 32)},
                    keys.rows);
    return keys;
  }

  // Adds what the non-finite elements of V of a tile contribute to the rows that see them. V has
  // landed, and is as it was loaded.
  __device__ __forceinline__ void add_visible_non_finite(std::int32_t key_tile, int stage) {
    if (threadIdx.x == 0) tile::count_slow_path(tile::SlowPath::kNonFiniteTile);
    const int half = pair_index<kConfig>();
    add_non_finite(v_operand(stage), visible_keys(key_tile, half));
    if constexpr (kPaired)
      add_non_finite(this->partner_v_operand(stage), visible_keys(key_tile, half ^ 1));
  }
  // With the keys that the lane's rows see, where no pair shares the rows.
  __device__ __forceinline__ void add_visible_non_finite(int stage,
                                                         const VisibleKeys<kConfig>& keys) {
    static_assert(!kPaired, "A warp has all keys of its rows.");
    if (threadIdx.x == 0) tile::count_slow_path(tile::SlowPath::kNonFiniteTile);
    add_non_finite(v_operand(stage), keys);
  }

 private:
  __device__ __forceinline__ void add_non_finite(const typename Base::Operand& values,
                                                 const VisibleKeys<kConfig>& keys) {
#pragma unroll 1
    for (int step = 0; step < kKeySteps; ++step) {
      std::uint32_t visible[kRowBlocks][4];
#pragma unroll
      for (int i = 0; i < kRowBlocks; ++i)
        tile::mark_visible(keys.rows[2 * i], keys.rows[2 * i + 1], step, visible[i]);
#pragma unroll
      for (int n = 0; n < kOutSteps; ++n) {
        std::uint32_t b[4];
        ptx::ldmatrix_x4_trans(b, values.step_address(n) + step * 16 * Layout::kRowBytes);
        const bool own = has_non_finite<kConfig.fp16>(b[0]) || has_non_finite<kConfig.fp16>(b[1]) ||
                         has_non_finite<kConfig.fp16>(b[2]) || has_non_finite<kConfig.fp16>(b[3]);
        if (!__any_sync(~0u, own)) continue;
        multiply_markers<false>(visible, n, b);
        multiply_markers<true>(visible, n, b);
      }
    }
  }

  template <bool kNegative>
  __device__ __forceinline__ void multiply_markers(const std::uint32_t (&visible)[kRowBlocks][4],
                                                   int n, const std::uint32_t (&b)[4]) {
    std::uint32_t markers[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) markers[i] = tile::markers_of<kConfig.fp16, kNegative>(b[i]);
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block)
      add_marker_products(visible[row_block], markers, &out_[row_block][8 * n]);
  }
};

}  // namespace tilewise::cuda::sm80
