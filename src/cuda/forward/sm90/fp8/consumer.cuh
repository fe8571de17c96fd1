// A consumer of fp8: a warpgroup that computes 64 rows of a query tile. FlashAttention-3 (arXiv
// 2407.08608), Algorithm 2 and section 3.3, with two changes. Every step takes the exact maximum,
// so that probs use all of e4m3 (tile/fp8_softmax.cuh). And the products P V of a key tile are
// summed on their own before O takes them in fp32, since the tensor cores would round a long sum in
// fp8 (ptx/wgmma_fp8.cuh). O is rescaled by the same multiply-add, so that rows that rise cost
// nothing.
#pragma once

#include "cuda/forward/sm90/consumer.cuh"
#include "cuda/forward/sm90/fp8/fp8_bytes.h"
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
        const std::int32_t v_key = key_--;
        step<false>({tile_, v_key}, f);
      }
      const Values last = {tile_, key_};
      ++slot_;
      if (!load_work_tile()) return last_product(last, f);
      step<true>(last, f);
    }
  }

 private:
  static constexpr int kScores = kConfig.k_tile / 2;  // registers of a thread
  static constexpr int kOut = kConfig.value_dim / 2;
  static constexpr int kPvColumns = 64;  // of V at a time: registers hold half of a product
  static constexpr int kPvParts = kConfig.value_dim / kPvColumns;
  static_assert(kPvParts <= 2);

  struct Fragments {
    float scores[kScores];             // S_j, then P_j
    std::uint32_t probs[kScores / 4];  // P_{j-1}, the left operand of PV
    float product[kPvColumns / 2];     // P_{j-1} V_{j-1}, of some columns
    float out[kOut];                   // O
    tile::RowStates states;            // m and l of the lane's rows
    float factor[tile::kRowsPerLane];  // of O before P_{j-1} V_{j-1} is added
  };
  // The key tile whose values are multiplied.
  struct Values {
    const WorkTile* tile;
    std::int32_t key;
  };
  using MaskBits = typename Base::MaskBits;

  // One key tile: its scores and probs, and the product of the tile before with its values.
  // kNextQuery: that is the last one of another query tile, which ends here.
  template <bool kNextQuery>
  __device__ __forceinline__ void step(const Values& before, Fragments& f) {
    k_.wait();
    this->order_barrier_wait();
    issue_qk(f.scores);  // S_j = Q K_j^T
    v_.wait();
    issue_pv<0>(f);  //   P_{j-1} V_{j-1}, its first columns
    this->order_barrier_arrive();
    const MaskBits mask = this->template mask_of_tile<true>();
    ptx::wgmma_wait<1>();  // S_j has arrived
    const tile::RowStates last_states = f.states;
    if constexpr (kNextQuery) f.states.clear();
    const tile::Anchors anchors = accept_and_update_max(mask, f);  // m
    this->split_basic_block();
    tile::PartialSums sums;
    add_part<0>(f);  // O = O * factor + P_{j-1} V_{j-1}
    if constexpr (kPvParts > 1) issue_pv<1>(f);
    exp2_scores(0, anchors, f, sums);  // P_j, while the other columns are computed
    if constexpr (kPvParts > 1) add_part<1>(f);
    end_pv(before, f);
    exp2_scores(1, anchors, f, sums);
    if constexpr (kNextQuery) end_query_tile(*before.tile, last_states, f);
    tile::add_sums(sums.row_sums(), anchors, f.states);  // l
    tile::pack_fp8_probs(f.scores, f.probs);
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      f.factor[which] = anchors.factor[which];
  }

  // The first scores of the block, which overlap nothing.
  __device__ __forceinline__ void first_scores(Fragments& f) {
    f.states.clear();
    clear_out(f);
    k_.wait();
    issue_qk(f.scores);
    const MaskBits mask = this->template mask_of_tile<true>();
    ptx::wgmma_wait<0>();
    const tile::Anchors anchors = accept_and_update_max(mask, f);
    tile::PartialSums sums;
    exp2_scores(0, anchors, f, sums);
    exp2_scores(1, anchors, f, sums);
    tile::add_sums(sums.row_sums(), anchors, f.states);
    tile::pack_fp8_probs(f.scores, f.probs);
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      f.factor[which] = anchors.factor[which];
  }

  // The last product of the block, which overlaps nothing.
  __device__ __forceinline__ void last_product(const Values& last, Fragments& f) {
    v_.wait();
    issue_pv<0>(f);
    add_part<0>(f);
    if constexpr (kPvParts > 1) {
      issue_pv<1>(f);
      add_part<1>(f);
    }
    end_pv(last, f);
    end_query_tile(*last.tile, f.states, f);
  }

  // Waits for the next query tile; false: there is none.
  __device__ __forceinline__ bool load_work_tile() {
    if (!Base::load_work_tile()) return false;
    // A scale that is not positive cannot stand inside of the exponent.
    const float scale = shared_.scales[slot_ % kTileSlots].scores;
    const bool positive = scale > 0;
    score_factor_ = positive ? 1.0f : scale;
    scale_log2_ = positive ? scale : 1.0f;
    return true;
  }

  __device__ __forceinline__ void issue_qk(float (&scores)[kScores]) const {
    gemm_fp8_ss<kConfig.e5m2, kConfig.k_tile, kConfig.head_dim>(
        this->q_address(), this->k_address(k_.state()), scores);
    ptx::wgmma_commit();
  }
  // kPart: of kPvColumns columns.
  template <int kPart>
  __device__ __forceinline__ void issue_pv(Fragments& f) const {
    gemm_fp8_rs<kConfig.e5m2, kPvColumns, kConfig.k_tile>(f.probs, v_address(kPart), f.product);
    ptx::wgmma_commit();
  }
  template <int kPart>
  __device__ __forceinline__ void add_part(Fragments& f) const {
    ptx::wgmma_wait<0>();
    ptx::fence_operand(f.product);
    tile::add_product<kPart * kPvColumns>(f.product, f.factor, f.out);
  }
  __device__ __forceinline__ std::uint32_t v_address(int part) const {
    return ptx::shared_address(shared_.v) + v_.state().offset(kConfig.v_bytes()) +
           static_cast<std::uint32_t>(part * kPvColumns * tile::kPanelRowBytes);
  }

  // The product is done: V is free, and so are the markers that may follow it.
  __device__ __forceinline__ void end_pv(const Values& values, Fragments& f) {
    ptx::fence_operand(f.probs);
    const int markers = shared_.markers[v_.state().stage];
    v_.release();
    if (markers != 0) add_non_finite(values, markers, f);
  }

  // S has arrived: the scale, the mask, the maxima; K is released.
  __device__ __forceinline__ tile::Anchors accept_and_update_max(const MaskBits& mask,
                                                                 Fragments& f) {
    ptx::fence_operand(f.scores);
    this->release_k();
    if (score_factor_ != 1.0f) {
#pragma unroll
      for (float& score : f.scores) score *= score_factor_;
    }
    Base::apply_mask(mask, f.scores);
    tile::Anchors anchors = tile::update_fp8_max(tile::row_max_of(f.scores), f.states, scale_log2_);
    tile::rebase_huge_fp8(f.scores, f.states, anchors);
    return anchors;
  }
  // P = exp2(S * scale_log2 - anchor), in the place of S: a half of it.
  __device__ __forceinline__ void exp2_scores(int half, const tile::Anchors& anchors, Fragments& f,
                                              tile::PartialSums& sums) const {
    tile::exp2_scores(f.scores, half, 2, anchors, scale_log2_, sums);
  }

  // consumer_epilogue.cuh
  __device__ static void clear_out(Fragments& f);
  __device__ void end_query_tile(const WorkTile& tile, const tile::RowStates& states, Fragments& f);
  __device__ void add_non_finite(const Values& values, int markers, Fragments& f);
  __device__ void mark_visible(const Values& values, std::uint32_t (&bytes)[kScores / 4]) const;

  using Base::k_;
  using Base::key_;
  using Base::parameters_;
  using Base::shared_;
  using Base::slot_;
  using Base::tile_;
  using Base::v_;
  using Base::warpgroup_;
  float score_factor_ = 1;  // of the query tile's scores,
  float scale_log2_ = 1;    // and what multiplies them in the exponent
};

}  // namespace tilewise::cuda::sm90
