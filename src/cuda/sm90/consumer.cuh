// A consumer: a warpgroup that computes 64 rows of a tile of queries. FlashAttention-3 (arXiv
// 2407.08608), Algorithm 2: while the tensor cores multiply one tile of keys, the exponentials of
// the next are computed, within the warpgroup (two products in flight) and between them (in turns).
#pragma once

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/again.cuh"
#include "cuda/sm90/epilogue.cuh"
#include "cuda/sm90/shared.cuh"
#include "cuda/tile/bands.h"
#include "cuda/tile/score.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/swizzle.h"
#include "math/score_rule.h"

namespace tilewise::cuda::sm90 {

inline constexpr std::uint32_t kTurnBarrier = 1;   // named barriers: one for each warpgroup's turn
inline constexpr std::uint32_t kClearBarrier = 4;  // and one for each to clear V together
inline constexpr int kEarly = 2;                   // steps before its end that a turn is given on
inline constexpr int kSteps = 16;                  // of the summed dimension in one instruction

template <KernelConfig kConfig>
class Consumer {
 public:
  static constexpr int kScores = kConfig.k_tile / 2;  // registers of a thread
  static constexpr int kOut = kConfig.value_dim / 2;
  static constexpr int kCount = kConfig.k_tile / kSteps;  // steps of a product with V
  static constexpr int kAhead = kCount - kConfig.steps_beside();

  __device__ Consumer(const Parameters& parameters, Shared<kConfig>& shared, int warpgroup)
      : parameters_(parameters), shared_(shared), warpgroup_(warpgroup) {
    // The first warpgroup has the first turn.
    if (warpgroup_ == kConfig.warpgroups() - 1) ptx::arrive_named(kTurnBarrier, 256);
  }

  // Every tile of queries that the producer describes. The first scores of one are computed beside
  // the last product of the one before, which is closed while the tensor cores belong to others.
  __device__ __forceinline__ void run() {
    Fragments f;
    if (!open()) return;
    begin(f);
    for (;;) {
      while (key_ != last_key_) {
        key_ = behind(key_);
        step<false>(f, *tile_);
      }
      const Tile& before = *tile_;
      if (!close_and_open(f)) break;
      step<true>(f, before);
    }
    wait_values();
    multiply_values<false, false>(v_descriptor(), f.weights, f.out);
    take_values(f.out);
    const Tile& last = shared_.tiles[(slot_ - 1) % kTileSlots];
    close(last, f.states);
    write(last, f.out);
  }

 private:
  struct Fragments {
    float scores[kScores];
    std::uint32_t weights[kScores / 2];
    float out[kOut];
    tile::RowStates states;
  };
  struct Visible {
    bool plain;  // all is, and no row sees its first key
    bool all;    // to every row of the warpgroup; else
    std::uint32_t bits[tile::kRowsPerLane];
  };
  static_assert(kConfig.k_tile / 4 <= 32, "A lane's columns of a row are bits of one number.");

  // Behind all steps of a tile of queries but those that are folded: these, and the next tile.
  __device__ __forceinline__ bool close_and_open(Fragments& f) {
    if constexpr (kConfig.folds) {
      if (folds_) return warpgroup_ == 0 ? fold<false>(f) : fold<true>(f);
    }
    ++slot_;
    skips_half_ = ends_high_;
    return open();
  }
  template <bool kSecond>
  __device__ bool fold(Fragments& f);

  // The first scores of all.
  __device__ __forceinline__ void begin(Fragments& f) {
    f.states.clear();
    wait_full(shared_.barriers.k_full, k_);
    multiply_scores(f.scores);
    const Visible visible = kConfig.general ? Visible{} : look<true>();
    ptx::wait_products<0>();
    const tile::Anchors anchors = take_and_raise(visible, f);
    if constexpr (kConfig.begins_full()) limits_ = find_limits();
    tile::add(tile::weigh(f.scores, anchors, parameters_.unit), anchors, f.states);
    if constexpr (kConfig.keeps) wait_next_keys<false>();
    tile::pack<kConfig.fp16>(f.scores, f.weights);
  }

  // The scores of a tile of keys beside the product of the one before. kFirst: the first of a tile
  // of queries; the product is the last of the tile `before`.
  template <bool kFirst>
  __device__ __forceinline__ void step(Fragments& f, const Tile& before) {
    if constexpr (!kConfig.keeps) wait_full(shared_.barriers.k_full, k_);
    take_turn();
    multiply_scores(f.scores);
    constexpr bool kNext = kConfig.keeps && !kFirst;
    const Visible visible = kConfig.general ? Visible{} : look<kFirst, kNext>();
    if constexpr (kNext) {
      next_scores(visible, f);
    } else {
      other_scores<kFirst>(visible, f, before);
      if constexpr (kConfig.keeps) wait_next_keys<false>();
    }
    tile::pack<kConfig.fp16>(f.scores, f.weights);
  }

  // In a kernel whose rows keep what exponents are taken against, those behind the first ones. K is
  // held until it is known that no weights are too large.
  __device__ __forceinline__ void next_scores(const Visible& visible, Fragments& f) {
    wait_full(shared_.barriers.v_full, v_place());  // its rows of others: look()
    const std::uint64_t v = v_descriptor();
    begin_values(v, f.weights, f.out);
    ptx::wait_products<1>();
    take_scores(f.scores);
    // One branch for whatever is rare: each costs some 40 cycles of a step's 2070 (D 128, S 16384).
    if (!visible.plain) {
      hide(visible, f.scores, kConfig.begins_full());  // D 64, S 1024 causal: 0.988
      if (tile::any_unseen(f.states)) tile::raise_unseen(tile::maxima_of(f.scores), f.states);
    }
    const tile::Anchors anchors = tile::anchors_of(f.states, parameters_.unit);
    tile::Totals totals = weigh_beside_values(v, anchors, f);
    if constexpr (kConfig.looks_late()) {
      wait_next_keys<true>();
      take_values(f.out);
      if (tile::have_grown<kConfig.fp16>(totals)) weigh_tile_again(totals, f);
      free_keys();
    } else {
      if (tile::have_grown<kConfig.fp16>(totals)) {
        ptx::wait_products<0>();
        ptx::settle(f.out);
        weigh_tile_again(totals, f);
      }
      free_keys();
      wait_next_keys<false>();
      take_values(f.out);
    }
    tile::add(totals, anchors, f.states);
  }

  // The first ones of a tile of queries, or any where maxima are taken of all.
  template <bool kFirst>
  __device__ __forceinline__ void other_scores(const Visible& visible, Fragments& f,
                                               const Tile& before) {
    wait_values();
    multiply_values<true, kFirst && kConfig.skips_half()>(v_descriptor(), f.weights, f.out);
    const tile::RowStates closing = f.states;
    if constexpr (kFirst) {
      if constexpr (kConfig.closes_early()) close(before, closing);
      f.states.clear();
    }
    ptx::wait_products<1>();
    const tile::Anchors anchors = take_and_raise(visible, f);
    if constexpr (kFirst && kConfig.begins_full()) limits_ = find_limits();
    tile::Totals totals;
    // Rows of out on their way to shared memory fill the gaps between exponentials, of which a warp
    // may have one in eight cycles. General scores leave no registers for both.
    constexpr bool kTogether = kConfig.has_carriers() && kConfig.keeps;
    if constexpr (kConfig.keeps && !kTogether)
      totals = tile::weigh(f.scores, anchors, parameters_.unit);
    // Where no branch of raise() has.
    if (!kFirst || !kConfig.begins_full() || kConfig.fp16) end_block();
    take_values(f.out);
    if constexpr (kFirst) {
      if constexpr (!kConfig.closes_early()) close(before, closing);
      if constexpr (kTogether) {
        totals = weigh_and_leave(before, anchors, f);
      } else {
        write(before, f.out);
      }
      fresh_ = true;
    } else {
      tile::rescale(f.out, anchors.factor);
    }
    if constexpr (!kConfig.keeps) totals = tile::weigh(f.scores, anchors, parameters_.unit);
    tile::add(totals, anchors, f.states);
  }

  // Behind the exponentials: the next step has one thing less before its products. kHeld: those
  // before them are not free yet. NOTE: a wait is a branch, and ends a basic block: in one block
  // with the maxima or exponentials, ptxas 13.0 waits for the products first, and they run beside
  // nothing (D 128, S 8192: 609 TFLOP/s, not 650).
  template <bool kHeld>
  __device__ __forceinline__ void wait_next_keys() {
    Place<kConfig.k_stages> next = k_;
    if constexpr (kHeld) next.advance();
    wait_full(shared_.barriers.k_full, next);
  }

  // For nobody: a wait that never waits.
  __device__ __forceinline__ void end_block() const {
    ptx::wait(ptx::shared_address(&shared_.barriers.open), 1);
  }

  // Scores have come, and K is not held.
  __device__ __forceinline__ tile::Anchors take_and_raise(const Visible& visible, Fragments& f) {
    take_scores(f.scores);
    if constexpr (!kConfig.frees_late()) free_keys();
    apply_rules(visible, f.scores);
    const tile::Anchors anchors = raise(visible, f);
    if constexpr (kConfig.frees_late()) free_keys();
    return anchors;
  }

  // What exponents are taken against. In a kernel that keeps it, rows have it from the first scores
  // they see; of bf16 from some of them, since weights have the room.
  __device__ __forceinline__ tile::Anchors raise(const Visible& visible, Fragments& f) {
    if constexpr (!kConfig.keeps || kConfig.fp16)
      return tile::raise(f.scores, f.states, parameters_.unit);
    const tile::Maxima some = tile::some_maxima_of(f.scores);
    if (kConfig.begins_full() && visible.all)
      return tile::begin_full_rows(some, f.states, parameters_.unit);
    tile::begin_rows(some, f.states);
    if (tile::any_unseen(f.states)) tile::raise_unseen(tile::maxima_of(f.scores), f.states);
    return tile::anchors_of(f.states, parameters_.unit);
  }

  // The scores of a tile of keys once more, since they have become weights, of which some are too
  // large: their rows take maxima. By the warp alone, while it holds Q and K.
  __device__ __forceinline__ void weigh_tile_again(tile::Totals& totals, Fragments& f) {
    weigh_again(totals, f, [&] {
      const Visible visible = look<false>();
      multiply_again<kConfig, kConfig.k_tile>(q_address(q_place().offset(kConfig.q_bytes())),
                                              k_address(), f.scores);
      hide(visible, f.scores);
    });
  }
  template <class Multiply>
  __device__ __forceinline__ void weigh_again(tile::Totals& totals, Fragments& f,
                                              const Multiply& multiply) {
    const tile::Grown grown = tile::grown_rows<kConfig.fp16>(totals);
    multiply();
    const tile::Anchors anchors =
        tile::raise_grown(grown, tile::maxima_of(f.scores), f.states, parameters_.unit);
    tile::scale(f.out, anchors.factor);
    totals = tile::weigh(f.scores, anchors, parameters_.unit);
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      f.states.row[which].sum *= anchors.factor[which];
  }

  __device__ __forceinline__ void close(const Tile& tile, const tile::RowStates& states) {
    if constexpr (kConfig.has_carriers()) {
      closed_ = scale_rows(parameters_, tile, states);
    } else {
      closed_ = close_rows<kConfig.keeps>(parameters_, tile, lane_places(), states);
    }
  }

  // Writes the rows of a tile of queries that is closed: of the one before that which is open.
  __device__ __forceinline__ void write(const Tile& tile, const float (&out)[kOut]) {
    if constexpr (kConfig.has_carriers()) {
      leave(tile, out, [](int) { return 0u; });
    } else {
      write_rows<kConfig>(parameters_, tile, lane_places(), out, closed_, shared_.last_mark);
    }
  }

  // The same beside the exponentials of a tile of scores.
  __device__ __forceinline__ tile::Totals weigh_and_leave(const Tile& tile,
                                                          const tile::Anchors& anchors,
                                                          Fragments& f) {
    constexpr int kParts = kOut / 8;
    tile::Chains chains;
    leave(tile, f.out, [&](int part) {
      tile::weigh(f.scores, part, kParts, anchors, parameters_.unit, chains);
      return chains.bits() & parameters_.zero;
    });
    return chains.totals();
  }

  // Leaves rows to the carrier, in the place of their Q or in that of all rows, once the carrier
  // has taken those before.
  template <class Beside>
  __device__ __forceinline__ void leave(const Tile& tile, const float (&out)[kOut],
                                        const Beside& beside) {
    const LanePlaces places = lane_places();
    std::uint32_t offset = 0;
    if constexpr (kConfig.out_through_q()) {
      offset = last_q_place().offset(kConfig.q_bytes());
    } else {
      ptx::wait(ptx::shared_address(&shared_.barriers.out_empty[warpgroup_]), slot_ % 2);
    }
    const std::int32_t rows = tile.q_len - tile.row - places.row;
    bool redo = false;
    // In any case where a branch would part rows from what is beside them.
    if (kConfig.keeps || !kConfig.narrow || parameters_.wide_stores)
      redo = leave_wide<kConfig>(out, closed_.scale, places.put + offset, rows, beside);
    if constexpr (kConfig.narrow) {
      if (!parameters_.wide_stores) {
        const std::uint32_t stage = (places.get + offset) & ~(tile::kSwizzleBytes - 1u);
        redo = store_narrow(
            out, closed_.scale, stage, rows,
            tile.out + places.row * parameters_.problem.out.row * parameters_.out_bytes,
            parameters_);
      }
    }
    redo = __any_sync(~0u, redo);
    Leaving& leaving = shared_.leaving[warpgroup_];
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x % 128 / 32;
    const bool sums = lane % tile::kLanesPerRow == 0;
    if (sums) {
#pragma unroll
      for (int which = 0; which < tile::kRowsPerLane; ++which)
        leaving.rows[warp * tile::kWarpRows + tile::lane_row(lane, which)] = closed_.sums[which];
    }
    if (lane == 0) leaving.redo[warp] = redo;
    __syncwarp();
    if (sums) ptx::arrive(ptx::shared_address(&shared_.barriers.out_full[warpgroup_]));
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
    if constexpr (kConfig.folds) {
      more = uniform(tile_->index) >= 0;  // a branch would lie among products of the tile before
    } else if (uniform(tile_->index) < 0) {
      return false;
    }
    first_key_ = last_key_ = uniform(tile_->first_key);
    end_key_ = uniform(tile_->end_key);
    end_used_ = uniform(tile_->used);
    key_ = end_key_ - 1;
    full_begin_ = uniform(tile_->full_begin[warpgroup_]);
    full_end_ = uniform(tile_->full_end[warpgroup_]);
    // Who sees any key has seen one by the last tile of which all rows see all.
    unseen_ = full_end_ - 1;
    if constexpr (kConfig.begins_full()) {
      key_ = uniform(tile_->start_key);
      if (key_ + 1 < end_key_) {
        last_key_ = key_ + 1;
        unseen_ = end_key_;
      }
    }
    if constexpr (kConfig.skips_half())
      ends_high_ = uniform(tile_->ends_high[warpgroup_] ? 1 : 0) != 0;
    if constexpr (kConfig.folds) folds_ = uniform(tile_->seen == Seen::kFolded ? 1 : 0) != 0;
    return more;
  }

  __device__ __forceinline__ std::int32_t behind(std::int32_t key) const {
    return kConfig.begins_full() ? tile::key_behind(key, first_key_, end_key_) : key - 1;
  }

  // This lane's, for the output. NOTE: beside so much of out as at D 256 there are no registers in
  // which they could stay from tile to tile: the compiler is told that they change.
  __device__ __forceinline__ LanePlaces lane_places() const {
    std::uint32_t thread[] = {threadIdx.x % 128};
    if constexpr (kOut > 64) ptx::settle(thread);
    const int warp = static_cast<int>(thread[0]) / 32;
    std::uint32_t stage;
    if constexpr (kConfig.out_through_q()) {
      // The warp's rows of the first panel, of the first place.
      stage = q_address(0) + static_cast<std::uint32_t>(warp * kStageBytes);
    } else if constexpr (kConfig.has_carriers()) {
      stage = ptx::shared_address(shared_.out.of_warpgroup[warpgroup_]) +
              static_cast<std::uint32_t>(warp * kStageBytes);
    } else {
      stage = ptx::shared_address(shared_.out.of_warp[warpgroup_ * 4 + warp]);
    }
    return lane_places_of(parameters_.problem, warpgroup_, static_cast<int>(thread[0]), stage);
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
    return place_of<kConfig.v_stages>(products_);
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
  __device__ __forceinline__ void multiply_scores(float (&scores)[kScores]) {
    multiply_rows<kConfig.k_tile>(q_address(q_place().offset(kConfig.q_bytes())), k_address(),
                                  scores);
  }
  // scores (64, kKeys) of keys of one tile.
  template <int kKeys>
  __device__ __forceinline__ void multiply_rows(std::uint32_t q_rows, std::uint32_t k_rows,
                                                float (&scores)[kKeys / 2]) {
    // Steps move a descriptor's address, which counts 16 bytes and never leaves its 14 bits.
    const std::uint64_t q = tile::rows_descriptor(q_rows);
    const std::uint64_t k = tile::rows_descriptor(k_rows);
    ptx::begin_products();
#pragma unroll
    for (int step = 0; step < kConfig.head_dim / kSteps; ++step) {
      const int panel = step * kSteps / tile::kPanelColumns;
      const int byte = step * kSteps % tile::kPanelColumns * 2;
      ptx::Product<kKeys>::template scores<kConfig.fp16>(
          scores, q + (panel * tile::kRows * tile::kPanelRowBytes + byte) / 16,
          k + (panel * kConfig.k_tile * tile::kPanelRowBytes + byte) / 16, step > 0);
    }
    ptx::commit_products();
  }

  // V of the scores that were last.
  __device__ __forceinline__ std::uint64_t v_descriptor() const {
    const std::uint32_t v = ptx::shared_address(shared_.v) + v_place().offset(kConfig.v_bytes());
    return tile::columns_descriptor(v, kConfig.k_tile * tile::kPanelRowBytes);
  }

  // Steps [begin, end) of out (64, Dv) += weights (64, k_tile) V. The next warpgroup gets its turn
  // before the end: it takes as long to begin as the last steps take.
  template <bool kTurn = true>
  __device__ __forceinline__ void multiply_values(std::uint64_t v,
                                                  const std::uint32_t (&weights)[kScores / 2],
                                                  float (&out)[kOut], int begin, int end) const {
    ptx::begin_products();
#pragma unroll
    for (int step = begin; step < end; ++step) {
      if (kTurn && step == kCount - kEarly) give_turn();
      ptx::Product<kConfig.value_dim>::template values<kConfig.fp16>(
          out, weights + 4 * step, v + step * kSteps * tile::kPanelRowBytes / 16,
          step > 0 || !fresh_);
    }
  }

  // All of them, started. kLast: of a tile of queries, and half of it may be left out.
  template <bool kTurn, bool kLast>
  __device__ __forceinline__ void multiply_values(std::uint64_t v,
                                                  const std::uint32_t (&weights)[kScores / 2],
                                                  float (&out)[kOut]) {
    if constexpr (kLast) {
      if (!skips_half_) multiply_values<kTurn>(v, weights, out, 0, kCount / 2);
      multiply_values<kTurn>(v, weights, out, kCount / 2, kCount);
    } else {
      multiply_values<kTurn>(v, weights, out, 0, kCount);
    }
    ptx::commit_products();
    fresh_ = false;
  }

  // The steps of a product with V that are asked for before its exponentials, and the others beside
  // them, one behind each part of the scores.
  __device__ __forceinline__ void begin_values(std::uint64_t v,
                                               const std::uint32_t (&weights)[kScores / 2],
                                               float (&out)[kOut]) {
    multiply_values(v, weights, out, 0, kAhead);
    ptx::commit_products();
    fresh_ = false;
  }
  __device__ __forceinline__ tile::Totals weigh_beside_values(std::uint64_t v,
                                                              const tile::Anchors& anchors,
                                                              Fragments& f) {
    tile::Chains chains;
#pragma unroll
    for (int part = 0; part < kCount; ++part) {
      tile::weigh(f.scores, part, kCount, anchors, parameters_.unit, chains);
      if (kAhead + part >= kCount) continue;
      multiply_values(v, f.weights, f.out, kAhead + part, kAhead + part + 1);
      ptx::commit_products();
    }
    return chains.totals();
  }

  // Scores have come.
  __device__ __forceinline__ void take_scores(float (&scores)[kScores]) {
    ptx::settle(scores);
    used_ = key_ == end_key_ - 1 ? end_used_ : kConfig.k_tile;
  }

  // Of the scores that were last: K is free, and Q behind the last ones of a tile of queries, if
  // its rows of out need it no more.
  __device__ __forceinline__ void free_keys() {
    release(shared_.barriers.k_empty[k_.stage]);
    k_.advance();
    if (!kConfig.out_through_q() && key_ == last_key_)
      release(shared_.barriers.q_empty[warpgroup_][q_place().stage]);
  }

  // The product with V has come: its stage is free, and the registers of its weights.
  __device__ __forceinline__ void take_values(float (&out)[kOut]) {
    ptx::wait_products<0>();
    free_values(out);
  }
  __device__ __forceinline__ void free_values(float (&out)[kOut]) {
    ptx::settle(out);
    release(shared_.barriers.v_empty[v_place().stage]);
    ++products_;
  }

  // Waits for the V of the scores that were last. Rows of another sequence, behind this one's end,
  // become zeros: their weights are 0, but 0 * NaN is NaN. Every warpgroup writes the same zeros.
  __device__ __forceinline__ void wait_values() const {
    wait_full(shared_.barriers.v_full, v_place());
    if (!has_others()) return;
    unsigned char* const v = shared_.v[v_place().stage];
    constexpr int kRowChunks = tile::kPanelRowBytes / tile::kChunkBytes;
    for (int chunk = threadIdx.x % 128; chunk < kConfig.v_bytes() / tile::kChunkBytes;
         chunk += 128) {
      if (chunk / kRowChunks % kConfig.k_tile < used_) continue;
      reinterpret_cast<uint4*>(v)[chunk] = make_uint4(0, 0, 0, 0);
    }
    ptx::fence_shared_for_async();
    ptx::sync_named(kClearBarrier + warpgroup_, 128);
  }
  __device__ __forceinline__ bool has_others() const { return used_ < kConfig.k_tile; }

  // Warpgroups take turns: while one has its products in the tensor cores, the others compute
  // exponentials.
  __device__ __forceinline__ void take_turn() { ptx::sync_named(kTurnBarrier + warpgroup_, 256); }
  __device__ __forceinline__ void give_turn() const {
    ptx::arrive_named(kTurnBarrier + (warpgroup_ + 1) % kConfig.warpgroups(), 256);
  }

  // The first row of this warp.
  __device__ __forceinline__ std::int32_t own_row() const {
    return tile_->row + warpgroup_ * tile::kRows + threadIdx.x % 128 / 32 * tile::kWarpRows;
  }

  // Keys [begin, end) of the lane's rows, less the lane's column.
  struct Limits {
    std::int32_t begin[tile::kRowsPerLane];
    std::int32_t end[tile::kRowsPerLane];
  };
  __device__ Limits find_limits() const;

  // What they see of the tile of keys whose scores are being computed (look.cuh). kFirst: of the
  // first one of a tile of queries. kValues: and makes rows of others in V zeros.
  template <bool kFirst, bool kValues = false>
  __device__ Visible look() const;

  // From products to scores: score rule and mask.
  __device__ void apply_rules(const Visible& visible, float (&scores)[kScores]);

  // NOTE: beside as much of out as at D 256, by row costs a register more than there are.
  __device__ __forceinline__ static void hide(const Visible& visible, float (&scores)[kScores],
                                              bool always = false) {
    if (always || !visible.all) tile::hide<tile::FragmentLayout, kOut <= 64>(scores, visible.bits);
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  int warpgroup_;
  const Tile* tile_ = nullptr;  // whose scores are computed
  std::uint32_t slot_ = 0;      // its number
  std::int32_t key_ = 0;        // the tile of keys, as tile/schedule.h orders them,
  Place<kConfig.k_stages> k_;   // and its place
  std::int32_t first_key_ = 0;
  std::int32_t end_key_ = 0;
  std::int32_t last_key_ = 0;    // comes last
  std::int32_t unseen_ = 0;      // in tiles from here on rows may see their first key
  std::int32_t full_begin_ = 0;  // tiles of keys of which every row of this warpgroup sees all
  std::int32_t full_end_ = 0;
  Limits limits_ = {};
  bool folds_ = false;          // Seen::kFolded
  bool ends_high_ = false;      // the first half of tile first_key_ is not seen
  bool skips_half_ = false;     // nor is it of the tile before
  std::int32_t end_used_ = 0;   // rows of V in tile end_key_ - 1
  std::int32_t used_ = 0;       // and in the one whose scores were last
  Closed closed_ = {};          // of the tile of queries whose rows are still in out
  bool fresh_ = true;           // out begins with the next product
  std::uint32_t products_ = 0;  // with V, done
};

}  // namespace tilewise::cuda::sm90
