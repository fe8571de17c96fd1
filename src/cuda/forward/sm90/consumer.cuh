// A consumer: a warpgroup that computes 64 rows of a query tile. FlashAttention-3 (arXiv
// 2407.08608), Algorithm 2: while the tensor cores multiply one key tile, the exponentials of the
// next are computed, within the warpgroup (two products in flight) and between warpgroups (in
// turns).
#pragma once

#include "cuda/forward/sm90/epilogue.cuh"
#include "cuda/forward/sm90/shared.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/gemm.cuh"
#include "cuda/sm90/named_barriers.h"
#include "cuda/tile/careful_softmax.cuh"
#include "cuda/tile/mask_bits.h"
#include "cuda/tile/softmax.cuh"

namespace tilewise::cuda::sm90 {

template <KernelConfig kConfig>
class Consumer {
 public:
  __device__ Consumer(const Parameters& parameters, Shared<kConfig>& shared, int warpgroup)
      : parameters_(parameters),
        shared_(shared),
        warpgroup_(warpgroup),
        k_(shared.barriers.k),
        v_(shared.barriers.v) {}

  // The first warpgroup is first at the tensor cores. A pass leaves the barrier as this does.
  __device__ __forceinline__ void begin() const {
    if (warpgroup_ == kConfig.consumers() - 1) order_barrier_arrive();
  }

  // All query tiles of the block. The first scores of a query tile overlap the last product of the
  // one before, which is finalised meanwhile.
  __device__ __forceinline__ void run() {
    Fragments f;
    if (!load_work_tile()) return;
    first_scores(f);
    for (;;) {
      while (key_ != last_key_) {
        key_ = next_key(key_);
        if constexpr (kConfig.lazy_max) {
          lazy_max_step(f);
        } else {
          exact_max_step(f);
        }
      }
      const WorkTile& before = *tile_;
      if (!next_query_tile(f)) break;
      first_step(before, f);
    }
    last_product(f);
  }

  // The same for a careful pass (careful_steps.cuh).
  __device__ void run_carefully();

 protected:
  static constexpr int kScores = kConfig.k_tile / 2;  // registers of a thread
  static constexpr int kOut = kConfig.value_dim / 2;
  static constexpr int kPvSteps = kConfig.k_tile / kMmaK;
  static constexpr int kEarlyPvSteps = kPvSteps - kConfig.late_pv_steps();
  static constexpr int kOrderSteps = 2;  // steps of PV left when the next warpgroup may go on

  struct Fragments {
    float scores[kScores];             // S_j, then P_j
    std::uint32_t probs[kScores / 2];  // P_{j-1}, the left operand of PV
    float out[kOut];                   // O
    tile::RowStates states;            // m and l of the lane's rows
  };
  struct MaskBits {
    bool trivial;  // all keys are visible, and no row sees its first one
    bool all;      // all keys are visible to every row of the warpgroup; else
    std::uint32_t bits[tile::kRowsPerLane];
  };
  static_assert(kConfig.k_tile / 4 <= 32, "A lane's columns of a row are bits of one number.");

  // A step with a lazy max: exponents are taken against the maximum that the row has (its anchor).
  // K stays in shared memory until no prob has overflowed. What is rare is one branch: each costs
  // some 40 cycles of a step's 2070 (D 128, S 16384).
  __device__ __forceinline__ void lazy_max_step(Fragments& f) {
    take_key_tile();
    order_barrier_wait();
    issue_qk(f.scores);                                 // S_j = Q K_j^T
    const MaskBits mask = mask_of_tile<false, true>();  //   overlaps the product
    v_.wait();
    const std::uint64_t v = v_descriptor();
    issue_early_pv(v, f);  // O += P_{j-1} V_{j-1}, but its last steps
    ptx::wgmma_wait<1>();
    accept_scores(f.scores);  // S_j has arrived
    if (!mask.trivial) apply_lazy_mask(mask, f);
    const tile::Anchors anchors = tile::anchors_of(f.states, parameters_.scale_log2);
    tile::RowSums sums = exp2_during_pv(v, anchors, f);  // P_j, and the rest of P_{j-1} V_{j-1}
    if constexpr (kConfig.checks_overflow_late()) {
      k_.wait_next();
      wait_pv(f.out);
      if (tile::any_overflowed<kConfig.fp16>(sums)) recompute_tile(sums, f);
      release_k();
    } else {
      if (tile::any_overflowed<kConfig.fp16>(sums)) {
        ptx::wgmma_wait<0>();
        ptx::fence_operand(f.out);
        recompute_tile(sums, f);
      }
      release_k();
      k_.wait();
      wait_pv(f.out);
    }
    tile::add_sums(sums, anchors, f.states);  // l
    tile::pack_probs<kConfig.fp16>(f.scores, f.probs);
  }

  // A step that takes the maximum of every tile, and rescales O where it has grown.
  __device__ __forceinline__ void exact_max_step(Fragments& f) {
    k_.wait();
    take_key_tile();
    order_barrier_wait();
    issue_qk(f.scores);                         // S_j = Q K_j^T
    const MaskBits mask = early_mask<false>();  //   overlaps the product
    wait_v();
    issue_pv(f);  // O += P_{j-1} V_{j-1}
    ptx::wgmma_wait<1>();
    const tile::Anchors anchors = accept_and_update_max(mask, f);  // S_j has arrived: m
    split_basic_block();
    wait_pv(f.out);
    tile::rescale(f.out, anchors.factor);
    const tile::RowSums sums = exp2_scores(anchors, f);  // P_j
    tile::add_sums(sums, anchors, f.states);             // l
    tile::pack_probs<kConfig.fp16>(f.scores, f.probs);
  }

  // The first step of a query tile: its scores overlap the last product of the tile `before`.
  __device__ __forceinline__ void first_step(const WorkTile& before, Fragments& f) {
    if constexpr (!kConfig.lazy_max) k_.wait();
    take_key_tile();
    order_barrier_wait();
    issue_qk(f.scores);                        // S_0 = Q K_0^T
    const MaskBits mask = early_mask<true>();  //   overlaps the product
    wait_v();
    issue_last_pv(f);  // the last O += P V of the tile before
    const tile::RowStates last_states = f.states;
    if constexpr (kConfig.finalises_early()) finalise(before, last_states);
    f.states.clear();
    ptx::wgmma_wait<1>();
    const tile::Anchors anchors = accept_and_update_max(mask, f);  // S_0 has arrived: m
    if constexpr (kConfig.starts_full()) key_limits_ = find_key_limits();
    look_for_rows_without_key(f.states);
    tile::RowSums sums;
    if constexpr (kConfig.lazy_max && !kStagesDuringExp2) sums = exp2_scores(anchors, f);
    split_basic_block();
    wait_pv(f.out);
    if constexpr (!kConfig.finalises_early()) finalise(before, last_states);
    if constexpr (kStagesDuringExp2) {
      sums = exp2_during_staging(before, anchors, f);
    } else {
      write_out(before, f.out);
    }
    accumulates_ = false;  // the next PV begins O
    if constexpr (!kConfig.lazy_max) sums = exp2_scores(anchors, f);
    tile::add_sums(sums, anchors, f.states);
    if constexpr (kConfig.lazy_max) k_.wait();
    tile::pack_probs<kConfig.fp16>(f.scores, f.probs);
  }
  // Rows of out on their way to shared memory fill the gaps between exponentials, of which a warp
  // may start one in eight cycles. A score mod leaves no registers for both.
  static constexpr bool kStagesDuringExp2 = kConfig.has_epilogue_warps() && kConfig.lazy_max;

  // The first scores of the block, which overlap nothing.
  __device__ __forceinline__ void first_scores(Fragments& f) {
    f.states.clear();
    k_.wait();
    take_key_tile();
    issue_qk(f.scores);
    const MaskBits mask = early_mask<true>();
    ptx::wgmma_wait<0>();
    const tile::Anchors anchors = accept_and_update_max(mask, f);
    if constexpr (kConfig.starts_full()) key_limits_ = find_key_limits();
    look_for_rows_without_key(f.states);
    tile::add_sums(exp2_scores(anchors, f), anchors, f.states);
    if constexpr (kConfig.lazy_max) k_.wait();
    tile::pack_probs<kConfig.fp16>(f.scores, f.probs);
  }

  // The last product of the block, which overlaps nothing.
  __device__ __forceinline__ void last_product(Fragments& f) {
    wait_v();
    issue_pv<false>(f);
    wait_pv(f.out);
    const WorkTile& last = shared_.tiles[(slot_ - 1) % kTileSlots];
    finalise(last, f.states);
    write_out(last, f.out);
  }

  // Ends a query tile and loads the next one; false: there is none.
  __device__ __forceinline__ bool next_query_tile(Fragments& f) {
    if constexpr (kConfig.fused_edges) {
      if (fuses_edges_)
        return warpgroup_ == 0 ? fused_edges_step<false>(f) : fused_edges_step<true>(f);
    }
    ++slot_;
    last_half_hidden_ = half_hidden_;
    return load_work_tile();
  }

  // consumer_state.cuh: work tiles, stages and the order of warpgroups.
  __device__ bool load_work_tile();
  __device__ std::int32_t next_key(std::int32_t key) const;
  __device__ void take_key_tile();
  __device__ std::uint32_t q_address() const;
  __device__ std::uint32_t q_stage_address(const PipelineState<kConfig.q_stages>& state) const;
  __device__ std::uint32_t k_address(const PipelineState<kConfig.k_stages>& state) const;
  __device__ std::uint64_t v_descriptor() const;
  __device__ void accept_scores(float (&scores)[kScores]);
  __device__ void release_k();
  __device__ void release_v(float (&out)[kOut]);
  __device__ void wait_pv(float (&out)[kOut]);
  __device__ void wait_v() const;
  __device__ bool has_foreign_rows() const;
  __device__ void split_basic_block() const;
  __device__ void order_barrier_wait() const;
  __device__ void order_barrier_arrive() const;

  // consumer_math.cuh: products and softmax.
  __device__ void issue_qk(float (&scores)[kScores]) const;
  template <bool kArrives = true>
  __device__ void issue_pv_steps(std::uint64_t v, Fragments& f, int begin, int end) const;
  template <bool kArrives = true>
  __device__ void issue_pv(Fragments& f);
  __device__ void issue_last_pv(Fragments& f);
  __device__ void issue_early_pv(std::uint64_t v, Fragments& f);
  __device__ tile::Anchors accept_and_update_max(const MaskBits& mask, Fragments& f);
  __device__ tile::RowSums exp2_scores(const tile::Anchors& anchors, Fragments& f) const;
  __device__ tile::RowSums exp2_during_pv(std::uint64_t v, const tile::Anchors& anchors,
                                          Fragments& f);
  __device__ void recompute_tile(tile::RowSums& sums, Fragments& f) const;
  template <class ComputeScores, class Exp2>
  __device__ void recompute_with_new_max(tile::RowSums& sums, Fragments& f,
                                         const ComputeScores& compute_scores,
                                         const Exp2& exp2) const;

  // careful_steps.cuh: query tiles whose data the fast steps cannot take.
  __device__ void careful_step(Fragments& f);
  __device__ void careful_pv(std::int32_t v_key, int begin, Fragments& f);
  __device__ bool cuts_keys(std::int32_t v_key) const;
  __device__ void careful_fused_edges(Fragments& f);
  template <bool kSecond>
  __device__ void careful_fused_probs(float (&others)[kConfig.k_tile / 4], Fragments& f);
  __device__ tile::Anchors update_max_carefully(Fragments& f) const;
  __device__ float shift_of(std::uint32_t slot) const;
  __device__ void request_careful_pass() const;

  // non_finite_values.cuh: elements of V that are not finite, in a careful step.
  __device__ void zero_non_finite_v() const;
  __device__ void add_non_finite_v(std::int32_t key, float (&out)[kOut]) const;
  __device__ void multiply_markers(std::int32_t key, float (&out)[kOut]) const;
  template <bool kNegative>
  __device__ void store_markers(std::int32_t key) const;
  __device__ static void meet_consumers();

  // mask.cuh: causal masks, windows and the score mod.
  struct KeyLimits {  // keys [begin, end) of the lane's rows, less the lane's column
    std::int32_t begin[tile::kRowsPerLane];
    std::int32_t end[tile::kRowsPerLane];
  };
  __device__ KeyLimits find_key_limits() const;
  __device__ void listed_bits(std::uint32_t (&bits)[tile::kRowsPerLane]) const;
  __device__ void look_for_rows_without_key(const tile::RowStates& states);
  template <bool kFirst, bool kWaitsForV = false>
  __device__ MaskBits mask_of_tile() const;
  template <bool kFirst>
  __device__ MaskBits early_mask() const;
  __device__ void apply_lazy_mask(const MaskBits& mask, Fragments& f);
  __device__ void apply_score_mod_and_mask(const MaskBits& mask, float (&scores)[kScores]) const;
  __device__ static void apply_mask(const MaskBits& mask, float (&scores)[kScores],
                                    bool always = false);
  __device__ std::int32_t warp_row() const;

  // consumer_epilogue.cuh: rows of out.
  __device__ LaneOffsets lane_offsets() const;
  __device__ void finalise(const WorkTile& tile, const tile::RowStates& states, float shift = 0);
  __device__ void write_out(const WorkTile& tile, const float (&out)[kOut]);
  __device__ tile::RowSums exp2_during_staging(const WorkTile& tile, const tile::Anchors& anchors,
                                               Fragments& f);
  template <class Overlapped>
  __device__ void stage_output(const WorkTile& tile, const float (&out)[kOut],
                               const Overlapped& overlapped);

  // fused_edges.cuh
  template <bool kSecond>
  __device__ bool fused_edges_step(Fragments& f);

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  int warpgroup_;
  const WorkTile* tile_ = nullptr;  // the query tile whose scores are computed,
  std::uint32_t slot_ = 0;          // its number in the block: also that of its Q,
  std::int32_t key_ = 0;            // and the key tile
  PipelineConsumer<kConfig.k_stages, kMaxStages> k_;
  CountedPipelineConsumer<kConfig.v_stages, kMaxStages> v_;
  std::int32_t first_key_ = 0;  // key tiles [first_key_, end_key_), in the order of next_key(),
  std::int32_t end_key_ = 0;
  std::int32_t last_key_ = 0;        // of which this one comes last
  std::int32_t first_key_from_ = 0;  // in key tiles from here on rows may see their first key
  std::int32_t full_begin_ = 0;      // key tiles that every row of this warpgroup sees whole
  std::int32_t full_end_ = 0;
  KeyLimits key_limits_ = {};
  std::int32_t bits_ = 0;    // KeyTile::bits of the key tile, where they are listed,
  bool lacks_keys_ = false;  // and whether a row of the warp has seen no key yet
  bool fuses_edges_ = false;
  bool half_hidden_ = false;       // WorkTile::half_hidden, of the query tile
  bool last_half_hidden_ = false;  // and of the one before
  std::int32_t last_v_rows_ = 0;   // rows of V in key tile end_key_ - 1
  std::int32_t v_rows_ = 0;        // rows of V in the key tile whose scores came last
  FinalisedRows finalised_ = {};   // of the query tile whose rows are still in out
  bool accumulates_ = false;       // out holds a sum
};

}  // namespace tilewise::cuda::sm90
