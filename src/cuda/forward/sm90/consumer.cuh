// A consumer: a warpgroup that computes 64 rows of a tile of queries. FlashAttention-3 (arXiv
// 2407.08608), Algorithm 2: while the tensor cores multiply one tile of keys, the exponentials of
// the next are computed, within the warpgroup (two products in flight) and between them (in turns).
#pragma once

#include "cuda/forward/sm90/epilogue.cuh"
#include "cuda/forward/sm90/recompute.cuh"
#include "cuda/forward/sm90/shared.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/bands.h"
#include "cuda/tile/score_mod.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/swizzle.h"
#include "math/score_rule.h"

namespace tilewise::cuda::sm90 {

inline constexpr std::uint32_t kOrderBarrier = 1;   // named barriers: one for each warpgroup's turn
inline constexpr std::uint32_t kClearVBarrier = 4;  // and one for each to clear V together
inline constexpr int kArriveEarly = 2;              // steps before its end that a turn is given on
inline constexpr int kMmaK = 16;                    // of the summed dimension in one instruction

template <KernelConfig kConfig>
class Consumer {
 public:
  static constexpr int kScores = kConfig.k_tile / 2;  // registers of a thread
  static constexpr int kOut = kConfig.value_dim / 2;
  static constexpr int kPvSteps = kConfig.k_tile / kMmaK;  // steps of a product with V
  static constexpr int kEarlyPvSteps = kPvSteps - kConfig.late_pv_steps();

  __device__ Consumer(const Parameters& parameters, Shared<kConfig>& shared, int warpgroup)
      : parameters_(parameters), shared_(shared), warpgroup_(warpgroup) {
    // The first warpgroup has the first turn.
    if (warpgroup_ == kConfig.consumers() - 1) ptx::named_barrier_arrive(kOrderBarrier, 256);
  }

  // Every tile of queries that the producer describes. The first scores of one are computed beside
  // the last product of the one before, which is closed while the tensor cores belong to others.
  __device__ __forceinline__ void run() {
    Fragments f;
    if (!open()) return;
    begin(f);
    for (;;) {
      while (key_ != last_key_) {
        key_ = next_key(key_);
        step<false>(f, *tile_);
      }
      const WorkTile& before = *tile_;
      if (!finish_query_tile(f)) break;
      step<true>(f, before);
    }
    wait_v();
    issue_pv<false, false>(v_descriptor(), f.probs, f.out);
    wait_pv(f.out);
    const WorkTile& last = shared_.tiles[(slot_ - 1) % kTileSlots];
    close(last, f.states);
    write(last, f.out);
  }

 private:
  struct Fragments {
    float scores[kScores];
    std::uint32_t probs[kScores / 2];
    float out[kOut];
    tile::RowStates states;
  };
  struct MaskBits {
    bool plain;  // all is, and no row sees its first key
    bool all;    // to every row of the warpgroup; else
    std::uint32_t bits[tile::kRowsPerLane];
  };
  static_assert(kConfig.k_tile / 4 <= 32, "A lane's columns of a row are bits of one number.");

  // Behind all steps of a tile of queries but those that are folded: these, and the next tile.
  __device__ __forceinline__ bool finish_query_tile(Fragments& f) {
    if constexpr (kConfig.fused_edges) {
      if (fuses_) return warpgroup_ == 0 ? fused_edges_step<false>(f) : fused_edges_step<true>(f);
    }
    ++slot_;
    skips_half_ = skips_first_half_;
    return open();
  }
  template <bool kSecond>
  __device__ bool fused_edges_step(Fragments& f);

  // The first scores of all.
  __device__ __forceinline__ void begin(Fragments& f) {
    f.states.clear();
    wait_full(shared_.barriers.k_full, k_);
    issue_qk(f.scores);
    const MaskBits mask = kConfig.score_mod ? MaskBits{} : mask_of_tile<true>();
    ptx::wgmma_wait<0>();
    const tile::Anchors anchors = accept_and_update_max(mask, f);
    if constexpr (kConfig.starts_full()) key_limits_ = find_key_limits();
    tile::add_sums(tile::exp2_scores(f.scores, anchors, parameters_.scale_log2), anchors, f.states);
    if constexpr (kConfig.lazy_max) wait_next_k<false>();
    tile::pack_probs<kConfig.fp16>(f.scores, f.probs);
  }

  // The scores of a tile of keys beside the product of the one before. kFirst: the first of a tile
  // of queries; the product is the last of the tile `before`.
  template <bool kFirst>
  __device__ __forceinline__ void step(Fragments& f, const WorkTile& before) {
    if constexpr (!kConfig.lazy_max) wait_full(shared_.barriers.k_full, k_);
    order_barrier_wait();
    issue_qk(f.scores);
    constexpr bool kNext = kConfig.lazy_max && !kFirst;
    const MaskBits mask = kConfig.score_mod ? MaskBits{} : mask_of_tile<kFirst, kNext>();
    if constexpr (kNext) {
      lazy_max_step(mask, f);
    } else {
      exact_max_step<kFirst>(mask, f, before);
      if constexpr (kConfig.lazy_max) wait_next_k<false>();
    }
    tile::pack_probs<kConfig.fp16>(f.scores, f.probs);
  }

  // In a kernel whose rows keep what exponents are taken against, those behind the first ones. K is
  // held until it is known that no probs are too large.
  __device__ __forceinline__ void lazy_max_step(const MaskBits& mask, Fragments& f) {
    wait_full(shared_.barriers.v_full, v_place());  // its rows of others: look()
    const std::uint64_t v = v_descriptor();
    issue_pv_early(v, f.probs, f.out);
    ptx::wgmma_wait<1>();
    accept_scores(f.scores);
    // One branch for whatever is rare: each costs some 40 cycles of a step's 2070 (D 128, S 16384).
    if (!mask.plain) {
      apply_mask_bits(mask, f.scores, kConfig.starts_full());  // D 64, S 1024 causal: 0.988
      if (tile::any_without_key(f.states))
        tile::init_max_without_key(tile::row_max_of(f.scores), f.states);
    }
    const tile::Anchors anchors = tile::anchors_of(f.states, parameters_.scale_log2);
    tile::RowSums totals = exp2_during_pv(v, anchors, f);
    if constexpr (kConfig.checks_overflow_late()) {
      wait_next_k<true>();
      wait_pv(f.out);
      if (tile::any_overflowed<kConfig.fp16>(totals)) recompute_tile_with_new_max(totals, f);
      release_k();
    } else {
      if (tile::any_overflowed<kConfig.fp16>(totals)) {
        ptx::wgmma_wait<0>();
        ptx::fence_operand(f.out);
        recompute_tile_with_new_max(totals, f);
      }
      release_k();
      wait_next_k<false>();
      wait_pv(f.out);
    }
    tile::add_sums(totals, anchors, f.states);
  }

  // The first ones of a tile of queries, or any where maxima are taken of all.
  template <bool kFirst>
  __device__ __forceinline__ void exact_max_step(const MaskBits& mask, Fragments& f,
                                                 const WorkTile& before) {
    wait_v();
    issue_pv<true, kFirst && kConfig.skips_half()>(v_descriptor(), f.probs, f.out);
    const tile::RowStates last_states = f.states;
    if constexpr (kFirst) {
      if constexpr (kConfig.finalises_early()) close(before, last_states);
      f.states.clear();
    }
    ptx::wgmma_wait<1>();
    const tile::Anchors anchors = accept_and_update_max(mask, f);
    if constexpr (kFirst && kConfig.starts_full()) key_limits_ = find_key_limits();
    tile::RowSums totals;
    // Rows of out on their way to shared memory fill the gaps between exponentials, of which a warp
    // may have one in eight cycles. General scores leave no registers for both.
    constexpr bool kTogether = kConfig.has_epilogue_warps() && kConfig.lazy_max;
    if constexpr (kConfig.lazy_max && !kTogether)
      totals = tile::exp2_scores(f.scores, anchors, parameters_.scale_log2);
    // Where no branch of raise() has.
    if (!kFirst || !kConfig.starts_full() || kConfig.fp16) split_basic_block();
    wait_pv(f.out);
    if constexpr (kFirst) {
      if constexpr (!kConfig.finalises_early()) close(before, last_states);
      if constexpr (kTogether) {
        totals = exp2_and_stage_output(before, anchors, f);
      } else {
        write(before, f.out);
      }
      fresh_ = true;
    } else {
      tile::rescale(f.out, anchors.factor);
    }
    if constexpr (!kConfig.lazy_max)
      totals = tile::exp2_scores(f.scores, anchors, parameters_.scale_log2);
    tile::add_sums(totals, anchors, f.states);
  }

  // Behind the exponentials: the next step has one thing less before its products. kHeld: those
  // before them are not free yet. NOTE: a wait is a branch, and ends a basic block: in one block
  // with the maxima or exponentials, ptxas 13.0 waits for the products first, and they run beside
  // nothing (D 128, S 8192: 609 TFLOP/s, not 650).
  template <bool kHeld>
  __device__ __forceinline__ void wait_next_k() {
    Place<kConfig.k_stages> next = k_;
    if constexpr (kHeld) next.advance();
    wait_full(shared_.barriers.k_full, next);
  }

  // For nobody: a wait that never waits.
  __device__ __forceinline__ void split_basic_block() const {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.barriers.open), 1);
  }

  // Scores have come, and K is not held.
  __device__ __forceinline__ tile::Anchors accept_and_update_max(const MaskBits& mask,
                                                                 Fragments& f) {
    accept_scores(f.scores);
    if constexpr (!kConfig.releases_k_late()) release_k();
    apply_rules(mask, f.scores);
    const tile::Anchors anchors = update_max(mask, f);
    if constexpr (kConfig.releases_k_late()) release_k();
    return anchors;
  }

  // What exponents are taken against. In a kernel that keeps it, rows have it from the first scores
  // they see; of bf16 from some of them, since probs have the room.
  __device__ __forceinline__ tile::Anchors update_max(const MaskBits& mask, Fragments& f) {
    if constexpr (!kConfig.lazy_max || kConfig.fp16)
      return tile::update_max(f.scores, f.states, parameters_.scale_log2);
    const tile::RowMax some = tile::sampled_row_max_of(f.scores);
    if (kConfig.starts_full() && mask.all)
      return tile::init_max_all_visible(some, f.states, parameters_.scale_log2);
    tile::init_max(some, f.states);
    if (tile::any_without_key(f.states))
      tile::init_max_without_key(tile::row_max_of(f.scores), f.states);
    return tile::anchors_of(f.states, parameters_.scale_log2);
  }

  // The scores of a tile of keys once more, since they have become probs, of which some are too
  // large: their rows take maxima. By the warp alone, while it holds Q and K.
  __device__ __forceinline__ void recompute_tile_with_new_max(tile::RowSums& totals, Fragments& f) {
    recompute_with_new_max(totals, f, [&] {
      const MaskBits mask = mask_of_tile<false>();
      recompute_scores<kConfig, kConfig.k_tile>(q_address(q_place().offset(kConfig.q_bytes())),
                                                k_address(), f.scores);
      apply_mask_bits(mask, f.scores);
    });
  }
  template <class Multiply>
  __device__ __forceinline__ void recompute_with_new_max(tile::RowSums& totals, Fragments& f,
                                                         const Multiply& multiply) {
    const tile::OverflowedRows overflowed = tile::overflowed_rows<kConfig.fp16>(totals);
    multiply();
    const tile::Anchors anchors = tile::update_max_of_overflowed(
        overflowed, tile::row_max_of(f.scores), f.states, parameters_.scale_log2);
    tile::scale_rows(f.out, anchors.factor);
    totals = tile::exp2_scores(f.scores, anchors, parameters_.scale_log2);
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      f.states.row[which].sum *= anchors.factor[which];
  }

  __device__ __forceinline__ void close(const WorkTile& tile, const tile::RowStates& states) {
    if constexpr (kConfig.has_epilogue_warps()) {
      finalised_ = scale_rows(parameters_, tile, states);
    } else {
      finalised_ = finalise_rows<kConfig.lazy_max>(parameters_, tile, lane_offsets(), states);
    }
  }

  // Writes the rows of a tile of queries that is closed: of the one before that which is open.
  __device__ __forceinline__ void write(const WorkTile& tile, const float (&out)[kOut]) {
    if constexpr (kConfig.has_epilogue_warps()) {
      stage_output(tile, out, [](int) { return 0u; });
    } else {
      write_rows<kConfig>(parameters_, tile, lane_offsets(), out, finalised_, shared_.last_flagged);
    }
  }

  // The same beside the exponentials of a tile of scores.
  __device__ __forceinline__ tile::RowSums exp2_and_stage_output(const WorkTile& tile,
                                                                 const tile::Anchors& anchors,
                                                                 Fragments& f) {
    constexpr int kParts = kOut / 8;
    tile::PartialSums chains;
    stage_output(tile, f.out, [&](int part) {
      tile::exp2_scores(f.scores, part, kParts, anchors, parameters_.scale_log2, chains);
      return chains.bits() & parameters_.zero;
    });
    return chains.totals();
  }

  // Leaves rows to the carrier, in the place of their Q or in that of all rows, once the carrier
  // has taken those before.
  template <class Overlapped>
  __device__ __forceinline__ void stage_output(const WorkTile& tile, const float (&out)[kOut],
                                               const Overlapped& overlapped) {
    const LaneOffsets places = lane_offsets();
    std::uint32_t offset = 0;
    if constexpr (kConfig.stages_out_in_q()) {
      offset = last_q_place().offset(kConfig.q_bytes());
    } else {
      ptx::mbarrier_wait(ptx::shared_address(&shared_.barriers.out_empty[warpgroup_]), slot_ % 2);
    }
    const std::int32_t rows = tile.q_len - tile.row - places.row;
    bool recompute = false;
    // In any case where a branch would part rows from what is beside them.
    if (kConfig.lazy_max || !kConfig.scalar_stores || parameters_.vector_stores)
      recompute = stage_rows<kConfig>(out, finalised_.scale, places.put + offset, rows, overlapped);
    if constexpr (kConfig.scalar_stores) {
      if (!parameters_.vector_stores) {
        const std::uint32_t stage = (places.get + offset) & ~(tile::kSwizzleBytes - 1u);
        recompute = store_rows_scalar(
            out, finalised_.scale, stage, rows,
            tile.out + places.row * parameters_.problem.out.row * parameters_.out_bytes,
            parameters_);
      }
    }
    recompute = __any_sync(~0u, recompute);
    StagedOutput& staged = shared_.staged[warpgroup_];
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x % 128 / 32;
    const bool sums = lane % tile::kLanesPerRow == 0;
    if (sums) {
#pragma unroll
      for (int which = 0; which < tile::kRowsPerLane; ++which)
        staged.rows[warp * tile::kWarpRows + tile::lane_row(lane, which)] = finalised_.sums[which];
    }
    if (lane == 0) staged.recompute[warp] = recompute;
    __syncwarp();
    if (sums) ptx::mbarrier_arrive(ptx::shared_address(&shared_.barriers.out_full[warpgroup_]));
  }

  // The same number in all lanes, and ptxas knows: loops that it bounds leave places and addresses
  // in uniform registers.
  __device__ __forceinline__ static std::int32_t uniform(std::int32_t x) {
    return __shfl_sync(~0u, x, 0);
  }

  // Waits for the next tile of queries; false: there is none.
  __device__ __forceinline__ bool open() {
    wait_full(shared_.barriers.q_full[warpgroup_], q_place());
    tile_ = &shared_.tiles[slot_ % kTileSlots];
    bool more = true;
    if constexpr (kConfig.fused_edges) {
      more = uniform(tile_->index) >= 0;  // a branch would lie among products of the tile before
    } else if (uniform(tile_->index) < 0) {
      return false;
    }
    first_key_ = last_key_ = uniform(tile_->first_key);
    end_key_ = uniform(tile_->end_key);
    last_v_rows_ = uniform(tile_->v_rows);
    key_ = end_key_ - 1;
    full_begin_ = uniform(tile_->full_begin[warpgroup_]);
    full_end_ = uniform(tile_->full_end[warpgroup_]);
    // Who sees any key has seen one by the last tile of which all rows see all.
    unseen_ = full_end_ - 1;
    if constexpr (kConfig.starts_full()) {
      key_ = uniform(tile_->start_key);
      if (key_ + 1 < end_key_) {
        last_key_ = key_ + 1;
        unseen_ = end_key_;
      }
    }
    if constexpr (kConfig.skips_half())
      skips_first_half_ = uniform(tile_->skips_first_half[warpgroup_] ? 1 : 0) != 0;
    if constexpr (kConfig.fused_edges)
      fuses_ = uniform(tile_->keys == KeyVisibility::kFusedEdges ? 1 : 0) != 0;
    return more;
  }

  __device__ __forceinline__ std::int32_t next_key(std::int32_t key) const {
    return kConfig.starts_full() ? tile::next_key_tile(key, first_key_, end_key_) : key - 1;
  }

  // This lane's, for the output. NOTE: beside so much of out as at D 256 there are no registers in
  // which they could stay from tile to tile: the compiler is told that they change.
  __device__ __forceinline__ LaneOffsets lane_offsets() const {
    std::uint32_t thread[] = {threadIdx.x % 128};
    if constexpr (kOut > 64) ptx::fence_operand(thread);
    const int warp = static_cast<int>(thread[0]) / 32;
    std::uint32_t stage;
    if constexpr (kConfig.stages_out_in_q()) {
      // The warp's rows of the first panel, of the first place.
      stage = q_address(0) + static_cast<std::uint32_t>(warp * kStageBytes);
    } else if constexpr (kConfig.has_epilogue_warps()) {
      stage = ptx::shared_address(shared_.out.of_warpgroup[warpgroup_]) +
              static_cast<std::uint32_t>(warp * kStageBytes);
    } else {
      stage = ptx::shared_address(shared_.out.of_warp[warpgroup_ * 4 + warp]);
    }
    return lane_offsets_of(parameters_.problem, warpgroup_, static_cast<int>(thread[0]), stage);
  }

  // Of the tile of queries that is open; of the values of the product that is next or under way.
  // NOTE: ptxas 13.0 has to know that they are the same in all lanes, to keep descriptors in
  // uniform registers: else some hundred instructions stand in the turn (D 64, S 16384: 453
  // TFLOP/s, not 478).
  __device__ __forceinline__ Place<kConfig.q_stages> q_place() const {
    return place_of<kConfig.q_stages>(slot_);
  }
  __device__ __forceinline__ Place<kConfig.q_stages> last_q_place() const {
    return place_of<kConfig.q_stages>(slot_ - 1);
  }
  __device__ __forceinline__ Place<kConfig.v_stages> v_place() const {
    return place_of<kConfig.v_stages>(pv_count_);
  }

  // Where the warpgroup's rows of Q begin, in a place that lies so far in; and a tile of K.
  __device__ __forceinline__ std::uint32_t q_address(std::uint32_t offset) const {
    return ptx::shared_address(shared_.q) + offset +
           static_cast<std::uint32_t>(warpgroup_ * tile::kRows * kConfig.head_dim * 2);
  }
  __device__ __forceinline__ std::uint32_t k_address() const {
    return ptx::shared_address(shared_.k) + k_.offset(kConfig.k_bytes());
  }

  // scores (64, k_tile) = Q K^T, started.
  __device__ __forceinline__ void issue_qk(float (&scores)[kScores]) {
    issue_qk_rows<kConfig.k_tile>(q_address(q_place().offset(kConfig.q_bytes())), k_address(),
                                  scores);
  }
  // scores (64, kKeys) of keys of one tile.
  template <int kKeys>
  __device__ __forceinline__ void issue_qk_rows(std::uint32_t q_rows, std::uint32_t k_rows,
                                                float (&scores)[kKeys / 2]) {
    // Steps move a descriptor's address, which counts 16 bytes and never leaves its 14 bits.
    const std::uint64_t q = tile::rows_descriptor(q_rows);
    const std::uint64_t k = tile::rows_descriptor(k_rows);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kConfig.head_dim / kMmaK; ++step) {
      const int panel = step * kMmaK / tile::kPanelColumns;
      const int byte = step * kMmaK % tile::kPanelColumns * 2;
      ptx::Wgmma<kKeys>::template ss<kConfig.fp16>(
          scores, q + (panel * tile::kRows * tile::kPanelRowBytes + byte) / 16,
          k + (panel * kConfig.k_tile * tile::kPanelRowBytes + byte) / 16, step > 0);
    }
    ptx::wgmma_commit();
  }

  // V of the scores that were last.
  __device__ __forceinline__ std::uint64_t v_descriptor() const {
    const std::uint32_t v = ptx::shared_address(shared_.v) + v_place().offset(kConfig.v_bytes());
    return tile::columns_descriptor(v, kConfig.k_tile * tile::kPanelRowBytes);
  }

  // Steps [begin, end) of out (64, Dv) += probs (64, k_tile) V. The next warpgroup gets its turn
  // before the end: it takes as long to begin as the last steps take.
  template <bool kArrive = true>
  __device__ __forceinline__ void issue_pv(std::uint64_t v,
                                           const std::uint32_t (&probs)[kScores / 2],
                                           float (&out)[kOut], int begin, int end) const {
    ptx::wgmma_fence();
#pragma unroll
    for (int step = begin; step < end; ++step) {
      if (kArrive && step == kPvSteps - kArriveEarly) order_barrier_arrive();
      ptx::Wgmma<kConfig.value_dim>::template rs<kConfig.fp16>(
          out, probs + 4 * step, v + step * kMmaK * tile::kPanelRowBytes / 16, step > 0 || !fresh_);
    }
  }

  // All of them, started. kLast: of a tile of queries, and half of it may be left out.
  template <bool kArrive, bool kLast>
  __device__ __forceinline__ void issue_pv(std::uint64_t v,
                                           const std::uint32_t (&probs)[kScores / 2],
                                           float (&out)[kOut]) {
    if constexpr (kLast) {
      if (!skips_half_) issue_pv<kArrive>(v, probs, out, 0, kPvSteps / 2);
      issue_pv<kArrive>(v, probs, out, kPvSteps / 2, kPvSteps);
    } else {
      issue_pv<kArrive>(v, probs, out, 0, kPvSteps);
    }
    ptx::wgmma_commit();
    fresh_ = false;
  }

  // The steps of a product with V that are asked for before its exponentials, and the others beside
  // them, one behind each part of the scores.
  __device__ __forceinline__ void issue_pv_early(std::uint64_t v,
                                                 const std::uint32_t (&probs)[kScores / 2],
                                                 float (&out)[kOut]) {
    issue_pv(v, probs, out, 0, kEarlyPvSteps);
    ptx::wgmma_commit();
    fresh_ = false;
  }
  __device__ __forceinline__ tile::RowSums exp2_during_pv(std::uint64_t v,
                                                          const tile::Anchors& anchors,
                                                          Fragments& f) {
    tile::PartialSums chains;
#pragma unroll
    for (int part = 0; part < kPvSteps; ++part) {
      tile::exp2_scores(f.scores, part, kPvSteps, anchors, parameters_.scale_log2, chains);
      if (kEarlyPvSteps + part >= kPvSteps) continue;
      issue_pv(v, f.probs, f.out, kEarlyPvSteps + part, kEarlyPvSteps + part + 1);
      ptx::wgmma_commit();
    }
    return chains.totals();
  }

  // Scores have come.
  __device__ __forceinline__ void accept_scores(float (&scores)[kScores]) {
    ptx::fence_operand(scores);
    v_rows_ = key_ == end_key_ - 1 ? last_v_rows_ : kConfig.k_tile;
  }

  // Of the scores that were last: K is free, and Q behind the last ones of a tile of queries, if
  // its rows of out need it no more.
  __device__ __forceinline__ void release_k() {
    release(shared_.barriers.k_empty[k_.stage]);
    k_.advance();
    if (!kConfig.stages_out_in_q() && key_ == last_key_)
      release(shared_.barriers.q_empty[warpgroup_][q_place().stage]);
  }

  // The product with V has come: its stage is free, and the registers of its probs.
  __device__ __forceinline__ void wait_pv(float (&out)[kOut]) {
    ptx::wgmma_wait<0>();
    release_v(out);
  }
  __device__ __forceinline__ void release_v(float (&out)[kOut]) {
    ptx::fence_operand(out);
    release(shared_.barriers.v_empty[v_place().stage]);
    ++pv_count_;
  }

  // Waits for the V of the scores that were last. Rows of another sequence, behind this one's end,
  // become zeros: their probs are 0, but 0 * NaN is NaN. Every warpgroup writes the same zeros.
  __device__ __forceinline__ void wait_v() const {
    wait_full(shared_.barriers.v_full, v_place());
    if (!has_foreign_rows()) return;
    unsigned char* const v = shared_.v[v_place().stage];
    constexpr int kRowChunks = tile::kPanelRowBytes / tile::kChunkBytes;
    for (int chunk = threadIdx.x % 128; chunk < kConfig.v_bytes() / tile::kChunkBytes;
         chunk += 128) {
      if (chunk / kRowChunks % kConfig.k_tile < v_rows_) continue;
      reinterpret_cast<uint4*>(v)[chunk] = make_uint4(0, 0, 0, 0);
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kClearVBarrier + warpgroup_, 128);
  }
  __device__ __forceinline__ bool has_foreign_rows() const { return v_rows_ < kConfig.k_tile; }

  // Warpgroups take turns: while one has its products in the tensor cores, the others compute
  // exponentials.
  __device__ __forceinline__ void order_barrier_wait() {
    ptx::named_barrier_sync(kOrderBarrier + warpgroup_, 256);
  }
  __device__ __forceinline__ void order_barrier_arrive() const {
    ptx::named_barrier_arrive(kOrderBarrier + (warpgroup_ + 1) % kConfig.consumers(), 256);
  }

  // The first row of this warp.
  __device__ __forceinline__ std::int32_t own_row() const {
    return tile_->row + warpgroup_ * tile::kRows + threadIdx.x % 128 / 32 * tile::kWarpRows;
  }

  // Keys [begin, end) of the lane's rows, less the lane's column.
  struct KeyLimits {
    std::int32_t begin[tile::kRowsPerLane];
    std::int32_t end[tile::kRowsPerLane];
  };
  __device__ KeyLimits find_key_limits() const;

  // What they see of the tile of keys whose scores are being computed (look.cuh). kFirst: of the
  // first one of a tile of queries. kValues: and makes rows of others in V zeros.
  template <bool kFirst, bool kValues = false>
  __device__ MaskBits mask_of_tile() const;

  // From products to scores: score rule and mask.
  __device__ void apply_rules(const MaskBits& mask, float (&scores)[kScores]);

  // NOTE: beside as much of out as at D 256, by row costs a register more than there are.
  __device__ __forceinline__ static void apply_mask_bits(const MaskBits& mask,
                                                         float (&scores)[kScores],
                                                         bool always = false) {
    if (always || !mask.all)
      tile::apply_mask_bits<tile::FragmentLayout, kOut <= 64>(scores, mask.bits);
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  int warpgroup_;
  const WorkTile* tile_ = nullptr;  // whose scores are computed
  std::uint32_t slot_ = 0;          // its number
  std::int32_t key_ = 0;            // the tile of keys, as tile/schedule.h orders them,
  Place<kConfig.k_stages> k_;       // and its place
  std::int32_t first_key_ = 0;
  std::int32_t end_key_ = 0;
  std::int32_t last_key_ = 0;    // comes last
  std::int32_t unseen_ = 0;      // in tiles from here on rows may see their first key
  std::int32_t full_begin_ = 0;  // tiles of keys of which every row of this warpgroup sees all
  std::int32_t full_end_ = 0;
  KeyLimits key_limits_ = {};
  bool fuses_ = false;             // Seen::kFolded
  bool skips_first_half_ = false;  // the first half of tile first_key_ is not seen
  bool skips_half_ = false;        // nor is it of the tile before
  std::int32_t last_v_rows_ = 0;   // rows of V in tile end_key_ - 1
  std::int32_t v_rows_ = 0;        // and in the one whose scores were last
  FinalisedRows finalised_ = {};   // of the tile of queries whose rows are still in out
  bool fresh_ = true;              // out begins with the next product
  std::uint32_t pv_count_ = 0;     // with V, done
};

}  // namespace tilewise::cuda::sm90
