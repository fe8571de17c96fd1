// The online softmax step of a tile of keys (FlashAttention-2, Algorithm 1, lines 9 and 10), fused
// with the product P V.
#pragma once

#include "cuda/sm80/masked_values.cuh"
#include "cuda/tile/exact_max.cuh"

namespace tilewise::cuda::sm80 {

template <KernelConfig kConfig>
class SoftmaxStep : public MaskedValues<kConfig> {
 public:
  using Base = MaskedValues<kConfig>;
  using Base::kKeys;
  using Base::kKeySteps;
  using Base::kOut;
  using Base::kOutSteps;
  using Base::kPaired;
  using Base::kRowBlocks;
  using Base::kScores;

  __device__ SoftmaxStep(const Parameters& parameters, Shared<kConfig>& shared)
      : Base(parameters, shared) {}

 protected:
  using Base::apply_dropout;
  using Base::multiply_pv;
  using Base::multiply_pv_step;
  using Base::out_;
  using Base::parameters_;
  using Base::shared_;
  using Base::states_;
  using Base::v_operand;

  // m = max(m, rowmax(S)), of masked scores.
  __device__ __forceinline__ void update_max(const float (&scores)[kRowBlocks][kScores],
                                             tile::ExactMax (&updates)[kRowBlocks]) {
    this->load_maxima();
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
      updates[row_block] = tile::update_exact_max(tile::row_max_of(scores[row_block]),
                                                  states_[row_block], parameters_.scale_log2);
    }
  }

  // Sets the shift of all rows. One thread calls it, a barrier before the next step.
  __device__ __forceinline__ void shift_probs(float shift) {
    shared_.prob_shift = shift;
    shared_.careful_anchor = shift > 0 ? 0 : tile::kHugeExactAnchor;
  }

  // Whether the fast step cannot compute the warp's probs: a row is huge, or V is large.
  __device__ __forceinline__ bool must_be_careful(
      const tile::ExactMax (&updates)[kRowBlocks]) const {
    const float least = shared_.careful_anchor;
    bool careful = false;
#pragma unroll
    for (const tile::ExactMax& update : updates) careful |= update.reaches(least);
    return __any_sync(~0u, careful);
  }

  // After the update of the maxima: P = exp(S - m), l = exp(m_old - m) l + rowsum(P),
  // O = exp(m_old - m) O + P V.
  __device__ __forceinline__ void softmax_and_multiply_pv(
      std::int32_t key_tile, int stage, const tile::ExactMax (&updates)[kRowBlocks],
      float (&scores)[kRowBlocks][kScores]) {
    if (__any_sync(~0u, have_grown(updates))) rescale(updates);
    exp2_and_multiply_pv(key_tile, stage, updates, scores);
  }
  __device__ __forceinline__ void careful_softmax_and_multiply_pv(
      std::int32_t key_tile, int stage, tile::ExactMax (&updates)[kRowBlocks],
      float (&scores)[kRowBlocks][kScores]) {
    if (must_be_careful(updates)) {
      rescale(updates);
      rebase_scores(updates, scores);
    } else if (__any_sync(~0u, have_grown(updates))) {
      rescale(updates);
    }
    exp2_and_multiply_pv(key_tile, stage, updates, scores);
  }

  __device__ __forceinline__ bool have_grown(const tile::ExactMax (&updates)[kRowBlocks]) const {
    bool grown = false;
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block)
      grown |= updates[row_block].has_grown(states_[row_block]);
    return grown;
  }

  // Rescales O and the row sums to the new maxima.
  __device__ __forceinline__ void rescale(const tile::ExactMax (&updates)[kRowBlocks]) {
    this->store_maxima();
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
      float factor[tile::kRowsPerLane];
#pragma unroll
      for (int which = 0; which < tile::kRowsPerLane; ++which) {
        math::SoftmaxState<float>& state = states_[row_block].row[which];
        factor[which] =
            tile::exact_max_factor(updates[row_block], which, state.max, parameters_.scale_log2);
        state.sum *= factor[which];
      }
#pragma unroll
      for (int r = 0; r < kOut; ++r) out_[row_block][r] *= factor[tile::register_row(r)];
    }
  }

  // Of a careful warp: prepares the scores of huge rows for exponentials, and makes the probs
  // smaller where V is large (large_values.cuh).
  __device__ __forceinline__ void rebase_scores(tile::ExactMax (&updates)[kRowBlocks],
                                                float (&scores)[kRowBlocks][kScores]) {
    const float shift = kConfig.fp16 ? 0 : shared_.prob_shift;
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
      tile::rebase_scores(scores[row_block], states_[row_block], shift, updates[row_block].anchors,
                          tile::kHugeExactAnchor);
    }
  }

  // P = exp2(S), O += P V, from scores and anchors.
  __device__ __forceinline__ void exp2_and_multiply_pv(std::int32_t key_tile, int stage,
                                                       const tile::ExactMax (&updates)[kRowBlocks],
                                                       float (&scores)[kRowBlocks][kScores]) {
    if constexpr (kConfig.score_mod) {
      std::uint32_t probs[kRowBlocks][kScores / 2];
#pragma unroll
      for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
        const tile::Anchors& anchors = updates[row_block].anchors;
        tile::add_sums(tile::exp2_scores(scores[row_block], anchors, parameters_.scale_log2),
                       anchors, states_[row_block]);
        apply_dropout(row_block, key_tile, scores[row_block]);
        tile::pack_probs<kConfig.fp16>(scores[row_block], probs[row_block]);
      }
      multiply_pv(stage, probs);
    } else {
      overlap_exp2_and_pv(stage, scores, updates);
    }
  }

  // P = exp2(S) and O += P V. While the tensor cores multiply the probs of 16 keys, the warp
  // computes the exponentials of the next 16, some between every two products.
  __device__ __forceinline__ void overlap_exp2_and_pv(int stage,
                                                      const float (&scores)[kRowBlocks][kScores],
                                                      const tile::ExactMax (&updates)[kRowBlocks]) {
    const typename Base::Operand values = v_operand(stage);
    constexpr int kPairs = 4 * kRowBlocks;  // of probs in 16 keys
    std::uint32_t probs[2][kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) probs[0][i] = exp2_pair(scores, updates, 0, i);
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
      if constexpr (kPaired) {
        publish_probs(step, probs[step % 2]);
        if (step + 1 == kKeySteps) arrive_for_partner();
      }
#pragma unroll
      for (int n = 0; n < kOutSteps; ++n) {
        multiply_pv_step(values, step, n, probs[step % 2], 4);
        if (step + 1 == kKeySteps) continue;
#pragma unroll
        for (int i = n * kPairs / kOutSteps; i < (n + 1) * kPairs / kOutSteps; ++i) {
          probs[(step + 1) % 2][i] = exp2_pair(scores, updates, step + 1, i);
        }
      }
    }
    if constexpr (kPaired) multiply_partner_pv(stage);
  }

  // Operand register i (row block * 4 + its number) of the probs of 16 keys; adds them to the row
  // sums.
  __device__ __forceinline__ std::uint32_t exp2_pair(const float (&scores)[kRowBlocks][kScores],
                                                     const tile::ExactMax (&updates)[kRowBlocks],
                                                     int step, int i) {
    const int row_block = i / 4;
    const int r = 8 * step + i % 4 * 2;
    const int which = tile::register_row(r);
    const float anchor = updates[row_block].anchors.anchor[which];
    const float scale_log2 = parameters_.scale_log2;
    const float first = ptx::exp2_approx(__fmaf_rn(scores[row_block][r], scale_log2, -anchor));
    const float second = ptx::exp2_approx(__fmaf_rn(scores[row_block][r + 1], scale_log2, -anchor));
    states_[row_block].row[which].sum += first + second;
    return ptx::pack<kConfig.fp16>(first, second);
  }

  // ---- a pair of warps, each of which has the scores of half of the keys ----

  // Before a barrier of the pair: publishes the maxima over the warp's keys.
  __device__ __forceinline__ void publish_maxima(const float (&scores)[kRowBlocks][kScores],
                                                 tile::RowMax (&maxima)[kRowBlocks]) {
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block)
      maxima[row_block] = tile::row_max_of(scores[row_block]);
    const float rows[4] = {maxima[0].row[0], maxima[0].row[1], maxima[1].row[0], maxima[1].row[1]};
    publish_rows(shared_, rows);
  }

  // After the barrier: updates the states by the maxima over the keys of both warps.
  __device__ __forceinline__ void update_max_of_pair(const tile::RowMax (&own)[kRowBlocks],
                                                     tile::ExactMax (&updates)[kRowBlocks]) {
    const float4 rows = read_partner_rows(shared_);
    const tile::RowMax partner[kRowBlocks] = {{{rows.x, rows.y}}, {{rows.z, rows.w}}};
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
      const tile::RowMax both = {{fmaxf(own[row_block].row[0], partner[row_block].row[0]),
                                  fmaxf(own[row_block].row[1], partner[row_block].row[1])}};
      updates[row_block] = tile::update_exact_max(both, states_[row_block], parameters_.scale_log2);
    }
  }

  // Publishes the probs of 16 keys for the partner.
  //   probs (kRowBlocks, 4)
  __device__ __forceinline__ void publish_probs(int step, const std::uint32_t* probs) {
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
      const std::uint32_t* const own = probs + 4 * row_block;
      const std::uint32_t thread = ptx::opaque(threadIdx.x);
      shared_.pair.probs[thread / 32][step * kRowBlocks + row_block][thread % 32] =
          make_uint4(own[0], own[1], own[2], own[3]);
    }
  }

  // O += P V for the partner's keys.
  __device__ __forceinline__ void multiply_partner_pv(int stage) {
    const typename Base::Operand values = this->partner_v_operand(stage);
    wait_for_partner();
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
      std::uint32_t probs[4 * kRowBlocks];
#pragma unroll
      for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
        const std::uint32_t thread = ptx::opaque(threadIdx.x);
        const uint4 own =
            shared_.pair.probs[thread / 32 ^ 1][step * kRowBlocks + row_block][thread % 32];
        probs[4 * row_block] = own.x;
        probs[4 * row_block + 1] = own.y;
        probs[4 * row_block + 2] = own.z;
        probs[4 * row_block + 3] = own.w;
      }
#pragma unroll
      for (int n = 0; n < kOutSteps; ++n) multiply_pv_step(values, step, n, probs, 4);
    }
  }
};

}  // namespace tilewise::cuda::sm80
