// A consumer of fp8: a warpgroup that computes 64 rows of a query tile. FlashAttention-3 (arXiv
// 2407.08608), Algorithm 2 and section 3.3, with three changes. Every step takes the exact maximum,
// so that probs use all of e4m3 (tile/fp8_softmax.cuh). The products P V of a key tile are summed
// on their own before O takes them in fp32, since the tensor cores would round a long sum in fp8
// (ptx/wgmma_fp8.cuh). O is rescaled by the same multiply-add, so that rows that rise cost nothing.
// And warpgroups take turns at the exponentials, not at the products, which take less time.
#pragma once

#include "cuda/forward/sm90/consumer.cuh"
#include "cuda/forward/sm90/fp8/fp8_bytes.h"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/sm90/gemm_fp8.cuh"
#include "cuda/tile/fp8_softmax.cuh"

namespace tilewise::cuda::sm90 {

template <KernelConfig kConfig>
class Fp8Consumer : Consumer<kConfig> {
  using Base = Consumer<kConfig>;

 public:
  using Base::Base;
  using Base::begin;

  // All query tiles of the block. The first scores of a query tile overlap the last product of the
  // one before, which is finalised meanwhile.
  __device__ __forceinline__ void run() {
    Fragments f;
    if (!load_work_tile()) return;
    first_scores(f);
    for (;;) {
      while (key_ != this->last_key_) {
        if constexpr (!kConfig.score_mod) {
          if (next_is_whole()) {
            whole_steps(f);
            continue;
          }
        }
        --key_;
        step<false>(f);
      }
      ++slot_;
      if (!load_work_tile()) return last_product(f);
      step<true>(f);
    }
  }

 private:
  static constexpr int kScores = kConfig.k_tile / 2;  // registers of a thread
  static constexpr int kOut = kConfig.value_dim / 2;
  static constexpr int kProduct = kConfig.pv_columns() / 2;
  static constexpr int kParts = kOut / kProduct;
  static constexpr int kExp2Parts = 8;
  static constexpr float kMostScore = 448.0f * 448.0f * kConfig.head_dim;  // of e4m3

  struct Fragments {
    float scores[kScores];             // S_j, then P_j
    std::uint32_t probs[kScores / 4];  // P_{j-1}, the left operand of PV
    float product[kProduct];           // P_{j-1} V_{j-1}, of pv_columns() columns
    float out[kOut];                   // O
    tile::RowStates states;            // m and l of the lane's rows
    float factor[tile::kRowsPerLane];  // of O before P_{j-1} V_{j-1} is added
  };
  // The scales of the rows of a key tile, which two blocks may have.
  struct BlockScales {
    float first;
    float second;        // from column `split` on
    std::int32_t split;  // k_tile: the tile is within a block
  };
  using MaskBits = typename Base::MaskBits;

  // Steps of key tiles that all rows see whole, of scores without a factor. What is rare comes
  // after the loop: ptxas leaves branches in place, and instructions of a longer loop arrive late.
  __device__ __forceinline__ void whole_steps(Fragments& f) {
    tile::Anchors anchors;
    tile::RowSums sums;
    for (;;) {
      --key_;
      k_.wait();
      issue_qk(f.scores);  // S_j = Q K_j^T
      v_.wait();
      issue_pv(0, f);        // P_{j-1} V_{j-1}, its first columns
      ptx::wgmma_wait<1>();  // S_j has arrived
      ptx::fence_operand(f.scores);
      this->release_k();
      anchors = update_max(f);  // m
      this->split_basic_block();
      add_first_parts(f);  // O = O * factor + P_{j-1} V_{j-1}
      const int markers = shared_.markers[v_.state().stage];
      sums = exp2_in_turn(anchors, f);  // P_j, during the last columns
      this->split_basic_block();
      if (markers != 0) break;
      add_part(kParts - 1, f);
      v_.release();
      end_scores(anchors, sums, {}, f);  // l
      if (key_ == this->last_key_ || !next_is_whole()) return;
    }
    add_last_part<false>(f);
    end_scores(anchors, sums, {}, f);
  }
  __device__ __forceinline__ bool next_is_whole() const {
    return key_ > this->full_begin_ && key_ <= this->full_end_ && !has_odd_scores_;
  }

  // One key tile: its scores and probs, and the product of the tile before with its values.
  // kNextQuery: that is the last one of another query tile, which ends here.
  template <bool kNextQuery>
  __device__ __forceinline__ void step(Fragments& f) {
    load_key_scale();
    k_.wait();
    issue_qk(f.scores);  // S_j = Q K_j^T
    v_.wait();
    issue_pv(0, f);  // P_{j-1} V_{j-1}, its first columns
    const MaskBits mask = this->template early_mask<true>();
    if constexpr (kNextQuery) {
      kept_states() = f.states;
      f.states.clear();
    }
    ptx::wgmma_wait<1>();                                          // S_j has arrived
    const tile::Anchors anchors = accept_and_update_max(mask, f);  // m
    this->split_basic_block();
    add_first_parts(f);  // O = O * factor + P_{j-1} V_{j-1}
    if constexpr (kConfig.score_mod) add_last_part<kNextQuery>(f);  // leaves no registers for it
    const tile::RowSums sums = exp2_in_turn(anchors, f);            // P_j, during the last columns
    const BlockScales values = value_scales();
    this->split_basic_block();
    if constexpr (!kConfig.score_mod) add_last_part<kNextQuery>(f);
    if constexpr (kNextQuery) end_query_tile(kept_states(), f);
    end_scores(anchors, sums, values, f);  // l
  }

  // The first scores of the block, which overlap nothing.
  __device__ __forceinline__ void first_scores(Fragments& f) {
    f.states.clear();
    clear_out(f);
    load_key_scale();
    k_.wait();
    issue_qk(f.scores);
    const MaskBits mask = this->template early_mask<true>();
    ptx::wgmma_wait<0>();
    const tile::Anchors anchors = accept_and_update_max(mask, f);
    end_scores(anchors, exp2_scores(anchors, f), value_scales(), f);
  }

  // The last product of the block, which overlaps nothing.
  __device__ __forceinline__ void last_product(Fragments& f) {
    v_.wait();
    issue_pv(0, f);
    add_first_parts(f);
    add_last_part<true>(f);
    end_query_tile(f.states, f);
  }

  // Waits for the next query tile; false: there is none.
  __device__ __forceinline__ bool load_work_tile() {
    if (!Base::load_work_tile()) return false;
    // A scale that is not positive cannot stand inside of the exponent.
    const float scale = shared_.scales[slot_ % kTileSlots].scores;
    const bool positive = scale > 0;
    score_factor_ = positive ? 1.0f : scale;
    scale_log2_ = positive ? scale : 1.0f;
    has_odd_scores_ = !positive || (!kConfig.e5m2 && scale * kMostScore >= tile::kHugeFp8Anchor);
    if constexpr (kConfig.score_mod) load_query_scales();
    return true;
  }

  __device__ __forceinline__ void issue_qk(float (&scores)[kScores]) const {
    gemm_fp8_ss<kConfig.e5m2, kConfig.k_tile, kConfig.head_dim>(
        this->q_address(), this->k_address(k_.state()), scores);
    ptx::wgmma_commit();
  }
  // part: of the columns.
  __device__ __forceinline__ void issue_pv(int part, Fragments& f) const {
    const std::uint32_t v =
        ptx::shared_address(shared_.v) + v_.state().offset(kConfig.v_bytes()) +
        static_cast<std::uint32_t>(part * kConfig.pv_columns() * tile::kPanelRowBytes);
    gemm_fp8_rs<kConfig.e5m2, kConfig.pv_columns(), kConfig.k_tile>(f.probs, v, f.product);
    ptx::wgmma_commit();
  }
  // Waits for a part of the product.
  __device__ __forceinline__ void accept_pv(Fragments& f) const {
    ptx::wgmma_wait<0>();
    ptx::fence_operand(f.product);
    ptx::fence_operand(f.probs);
  }
  __device__ __forceinline__ void add_part(int part, Fragments& f) const {
    accept_pv(f);
    tile::add_product(f.product, f.factor, f.out + part * kProduct);
  }

  // The first part of the product has been issued. Adds all but the last one, which is issued.
  __device__ __forceinline__ void add_first_parts(Fragments& f) const {
#pragma unroll
    for (int part = 0; part < kParts - 1; ++part) {
      add_part(part, f);
      issue_pv(part + 1, f);
    }
  }
  // V is free then, and so are the markers that may follow it. kOfLast: of the last key tile of the
  // query tile before slot_.
  template <bool kOfLast>
  __device__ __forceinline__ void add_last_part(Fragments& f) {
    const int stage = v_.state().stage;
    add_part(kParts - 1, f);
    const int markers = shared_.markers[stage];
    v_.release();
    if (markers == 0) return;
    const WorkTile& tile = kOfLast ? last_tile() : *tile_;
    add_non_finite(tile, kOfLast ? tile.first_key : key_ + 1, markers, f);
  }

  // S has arrived: the scale, the mask, the maxima; K is released.
  __device__ __forceinline__ tile::Anchors accept_and_update_max(const MaskBits& mask,
                                                                 Fragments& f) {
    ptx::fence_operand(f.scores);
    this->release_k();
    if constexpr (kConfig.score_mod) {
      scale_scores(f.scores);
      this->apply_score_mod_and_mask(mask, f.scores);
    } else if (score_factor_ != 1.0f) {
#pragma unroll
      for (float& score : f.scores) score *= score_factor_;
    }
    if constexpr (!kConfig.score_mod) Base::apply_mask(mask, f.scores);
    return update_max<true>(f);
  }
  // kAny: the scores may be huge, with any data that a scale lets be.
  template <bool kAny = kConfig.e5m2>
  __device__ __forceinline__ tile::Anchors update_max(Fragments& f) const {
    const tile::RowStates before = f.states;
    tile::Anchors anchors = tile::update_fp8_max(tile::row_max_of(f.scores), f.states, scale_log2_);
    if (kAny && tile::any_huge_fp8(anchors))
      tile::rebase_huge_fp8(f.scores, before, f.states, scale_log2_, anchors);
    return anchors;
  }
  // P = exp2(S * scale_log2 - anchor), in the place of S.
  __device__ __forceinline__ tile::RowSums exp2_scores(const tile::Anchors& anchors,
                                                       Fragments& f) const {
    return tile::exp2_scores(f.scores, anchors, scale_log2_);
  }
  // The same, one warpgroup after the other: while one computes exponentials, the tensor cores and
  // all else are for the other. The next one may begin when the last part is left, since its first
  // exponential takes as long to arrive. Its barrier depends on the sums for ptxas alone.
  __device__ __forceinline__ tile::RowSums exp2_in_turn(const tile::Anchors& anchors,
                                                        Fragments& f) const {
    tile::PartialSums sums;
    this->order_barrier_wait();
    // ptxas would move exponentials across the barrier: their anchors depend on what is read here,
    // a 0.
    const tile::Anchors own = anchors_after_barrier(anchors);
#pragma unroll
    for (int part = 0; part < kExp2Parts; ++part) {
      if (part == kExp2Parts - 1) pass_turn(sums.row_sums());
      tile::exp2_scores(f.scores, part, kExp2Parts, own, scale_log2_, sums);
    }
    return sums.row_sums();
  }
  __device__ __forceinline__ tile::Anchors anchors_after_barrier(
      const tile::Anchors& anchors) const {
    const std::uint32_t zero =
        __float_as_uint(ptx::ld_shared(ptx::shared_address(&shared_.careful.pass)));
    return {{__uint_as_float(__float_as_uint(anchors.anchor[0]) | zero),
             __uint_as_float(__float_as_uint(anchors.anchor[1]) | zero)},
            {anchors.factor[0], anchors.factor[1]}};
  }
  __device__ __forceinline__ void pass_turn(const tile::RowSums& sums) const {
    const int next = (warpgroup_ + 1) % kConfig.consumers();
    const std::uint32_t bits = __float_as_uint(sums.row[0]) | __float_as_uint(sums.row[1]);
    ptx::named_barrier_arrive(barrier_of(NamedBarrier::kOrder, next) + (bits & parameters_.zero),
                              256);
  }
  // The sums, and P as an operand.
  __device__ __forceinline__ void end_scores(const tile::Anchors& anchors,
                                             const tile::RowSums& sums, const BlockScales& values,
                                             Fragments& f) {
    tile::add_sums(sums, anchors, f.states);
    const float unit_factor = scale_probs(values, f.scores);
    tile::pack_fp8_probs(f.scores, f.probs);
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      f.factor[which] = anchors.factor[which] * unit_factor;
  }

  // block_scales.cuh
  __device__ void load_query_scales();
  __device__ void load_key_scale();
  __device__ void scale_scores(float (&scores)[kScores]) const;
  __device__ BlockScales value_scales() const;
  __device__ float scale_probs(const BlockScales& values, float (&probs)[kScores]);
  __device__ BlockScales scales_of(const problem::View& view) const;

  // consumer_epilogue.cuh
  __device__ static void clear_out(Fragments& f);
  // The states of a query tile that ends wait in the place of the warp's rows of out, since no
  // registers are left.
  __device__ __forceinline__ tile::RowStates& kept_states() const {
    const int thread = static_cast<int>(ptx::opaque(threadIdx.x)) % 128;
    unsigned char* const stage = shared_.out.of_warp[warpgroup_ * 4 + thread / 32];
    return reinterpret_cast<tile::RowStates*>(stage)[thread % 32];
  }
  __device__ __forceinline__ const WorkTile& last_tile() const {
    return shared_.tiles[(slot_ - 1) % kTileSlots];
  }
  __device__ void end_query_tile(const tile::RowStates& states, Fragments& f) const;
  __device__ void add_non_finite(const WorkTile& tile, std::int32_t key, int markers, Fragments& f);
  __device__ void mark_visible(const WorkTile& tile, std::int32_t key,
                               std::uint32_t (&bytes)[kScores / 4]) const;

  using Base::k_;
  using Base::key_;
  using Base::parameters_;
  using Base::shared_;
  using Base::slot_;
  using Base::tile_;
  using Base::v_;
  using Base::warpgroup_;
  float score_factor_ = 1;       // of the query tile's scores,
  float scale_log2_ = 1;         // and what multiplies them in the exponent
  bool has_odd_scores_ = false;  // they have a factor, or may be huge
  // With scales of blocks, by score_factor_ times the scales of the lane's rows of Q, and that of
  // K.
  float row_scales_[tile::kRowsPerLane] = {1, 1};
  float key_scale_ = 1;
  float key_ratio_ = 1;   // of the second scale of the key tile to the first
  float value_unit_ = 1;  // O is to be multiplied by it
};

}  // namespace tilewise::cuda::sm90
