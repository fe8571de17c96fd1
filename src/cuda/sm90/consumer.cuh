// A consumer: a warpgroup that computes 64 rows of a tile of queries. FlashAttention-3 (arXiv
// 2407.08608), Algorithm 2: while the tensor cores multiply one tile of keys, the exponentials of
// the next are computed, within the warpgroup (two products in flight) and between warpgroups (they
// take turns at the tensor cores).
#pragma once

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/wgmma.cuh"
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
  // Sums are closed beside the last product, where there are registers for what comes of it.
  static constexpr bool kCloseEarly = kOut <= 64;
  // Rows are written beside the next scores but one, where out is small and two warpgroups have the
  // registers. With as much of out as at D 128, the product that waits for it costs more. Measured
  // of plain scores alone.
  static constexpr bool kWriteLate = kOut <= 32 && kConfig.warpgroups() == 2 && !kConfig.general;
  // K is free as soon as its scores have come, but to say so takes its time. Behind the maxima
  // there is some, where the products of a step take longer than they do: at D 64, S 2048, 437
  // TFLOP/s, not 411; at D 128, 569, not 579 (S 512).
  static constexpr bool kFreeLate = kOut <= 32;

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
      while (key_ > first_key_) {
        --key_;
        step<false>(f, *tile_);
      }
      const Tile& before = *tile_;
      ++slot_;
      if (!open()) break;
      step<true>(f, before);
    }
    if (kWriteLate && unwritten_ != nullptr) write(f.out);
    wait_values();
    multiply_values<false>(f.weights, f.out);
    take_values(1, f.out);
    unwritten_ = &shared_.tiles[(slot_ - 1) % kTileSlots];
    closed_ = close_rows(parameters_, *unwritten_, lane_places(), f.states);
    write(f.out);
  }

 private:
  struct Fragments {
    float scores[kScores];
    std::uint32_t weights[kScores / 2];
    float out[kOut];
    tile::RowStates states;
  };
  struct Visible {
    bool all;  // to every row of the warpgroup; else
    std::uint32_t bits[tile::kRowsPerLane];
  };
  static_assert(kConfig.k_tile / 4 <= 32, "A lane's columns of a row are bits of one number.");

  // The first scores of all.
  __device__ __forceinline__ void begin(Fragments& f) {
    f.states.clear();
    wait_full(shared_.barriers.k_full, k_place());
    multiply_scores(f.scores);
    const Visible visible = kConfig.general ? Visible{} : look();
    ptx::wait_products<0>();
    take_scores<true>(visible, f.scores);
    const tile::Anchors anchors = tile::raise(f.scores, f.states, parameters_.unit);
    if constexpr (kFreeLate) free_keys();
    tile::weigh(f.scores, anchors, f.states, parameters_.unit);
    tile::pack<kConfig.fp16>(f.scores, f.weights);
  }

  // The scores of a tile of keys beside the product of the one before. kFirst: the first of a tile
  // of queries; the product is the last of the tile `before`.
  template <bool kFirst>
  __device__ __forceinline__ void step(Fragments& f, const Tile& before) {
    wait_full(shared_.barriers.k_full, k_place());
    take_turn();
    multiply_scores(f.scores);
    // Beside the scores, before it is the turn of their exponentials:
    const Visible visible = kConfig.general ? Visible{} : look();
    if (kWriteLate && unwritten_ != nullptr) write(f.out);
    wait_values();
    multiply_values<true>(f.weights, f.out);
    const tile::RowStates closing = f.states;
    if constexpr (kFirst) {
      if constexpr (kCloseEarly) closed_ = close_rows(parameters_, before, lane_places(), closing);
      f.states.clear();
    }
    ptx::wait_products<1>();
    take_scores<kFirst>(visible, f.scores);
    const tile::Anchors anchors = tile::raise(f.scores, f.states, parameters_.unit);
    if constexpr (kFreeLate) free_keys();
    // NOTE: the loop of a wait ends a basic block: in one block with the maxima, ptxas 13.0 waits
    // for the products first, and the maxima run beside nothing (D 128, S 8192: 609 TFLOP/s, not
    // 650). Nobody has to come for this one.
    ptx::wait(ptx::shared_address(&shared_.barriers.open), 1);
    take_values(2, f.out);
    if constexpr (kFirst) {
      if constexpr (!kCloseEarly) closed_ = close_rows(parameters_, before, lane_places(), closing);
      unwritten_ = &before;
      if constexpr (!kWriteLate) write(f.out);
      fresh_ = true;
    } else {
      tile::rescale(f.out, anchors.factor);
    }
    tile::weigh(f.scores, anchors, f.states, parameters_.unit);
    tile::pack<kConfig.fp16>(f.scores, f.weights);
  }

  // Writes the rows that are closed.
  __device__ __forceinline__ void write(const float (&out)[kOut]) {
    write_rows<kConfig>(parameters_, *unwritten_, lane_places(), out, closed_, shared_.last_mark);
    unwritten_ = nullptr;
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
    if (uniform(tile_->index) < 0) return false;
    first_key_ = uniform(tile_->first_key);
    key_ = uniform(tile_->end_key) - 1;
    full_begin_ = uniform(tile_->full_begin[warpgroup_]);
    full_end_ = uniform(tile_->full_end[warpgroup_]);
    return true;
  }

  // This lane's, for the output. NOTE: beside so much of out as at D 256 there are no registers in
  // which they could stay from tile to tile: the compiler is told that they change.
  __device__ __forceinline__ LanePlaces lane_places() const {
    std::uint32_t thread[] = {threadIdx.x % 128};
    if constexpr (kOut > 64) ptx::settle(thread);
    const std::uint32_t stage =
        ptx::shared_address(shared_.out[warpgroup_ * 4 + static_cast<int>(thread[0]) / 32]);
    return lane_places_of(parameters_.problem, warpgroup_, static_cast<int>(thread[0]), stage);
  }

  // Of the tile of queries that is open; of the keys whose scores are next; of the values whose
  // scores were last. NOTE: counted: ptxas 13.0 then knows that they are the same in all lanes and
  // keeps descriptors in uniform registers. From places that advance, it computes them in every
  // lane and puts some hundred instructions into the turn (D 64, S 16384: 453 TFLOP/s, not 478).
  __device__ __forceinline__ Place<kConfig.q_stages> q_place() const {
    return place_of<kConfig.q_stages>(slot_);
  }
  __device__ __forceinline__ Place<kConfig.stages> k_place() const {
    return place_of<kConfig.stages>(step_);
  }
  __device__ __forceinline__ Place<kConfig.stages> v_place() const {
    return place_of<kConfig.stages>(step_ - 1);
  }

  // scores (64, k_tile) = Q K^T, started.
  __device__ __forceinline__ void multiply_scores(float (&scores)[kScores]) {
    // Steps move the address in a descriptor, which counts 16 bytes and never leaves its 14 bits.
    const std::uint64_t q = tile::rows_descriptor(
        ptx::shared_address(shared_.q) + q_place().offset(kConfig.q_bytes()) +
        static_cast<std::uint32_t>(warpgroup_ * tile::kRows * kConfig.head_dim * 2));
    const std::uint64_t k =
        tile::rows_descriptor(ptx::shared_address(shared_.k) + k_place().offset(kConfig.k_bytes()));
    ptx::begin_products();
#pragma unroll
    for (int step = 0; step < kConfig.head_dim / kSteps; ++step) {
      const int panel = step * kSteps / tile::kPanelColumns;
      const int byte = step * kSteps % tile::kPanelColumns * 2;
      ptx::Product<kConfig.k_tile>::template scores<kConfig.fp16>(
          scores, q + (panel * tile::kRows * tile::kPanelRowBytes + byte) / 16,
          k + (panel * kConfig.k_tile * tile::kPanelRowBytes + byte) / 16, step > 0);
    }
    ptx::commit_products();
  }

  // out (64, Dv) += weights (64, k_tile) V, started. The next warpgroup gets its turn before the
  // end: it takes as long to begin as the last steps take.
  template <bool kTurn>
  __device__ __forceinline__ void multiply_values(const std::uint32_t (&weights)[kScores / 2],
                                                  float (&out)[kOut]) {
    const std::uint64_t v = tile::columns_descriptor(
        ptx::shared_address(shared_.v) + v_place().offset(kConfig.v_bytes()),
        kConfig.k_tile * tile::kPanelRowBytes);
    ptx::begin_products();
#pragma unroll
    for (int step = 0; step < kConfig.k_tile / kSteps; ++step) {
      if (kTurn && step == kConfig.k_tile / kSteps - kEarly) give_turn();
      ptx::Product<kConfig.value_dim>::template values<kConfig.fp16>(
          out, weights + 4 * step, v + step * kSteps * tile::kPanelRowBytes / 16,
          step > 0 || !fresh_);
    }
    ptx::commit_products();
    fresh_ = false;
  }

  // Scores have come.
  template <bool kFirst>
  __device__ __forceinline__ void take_scores(const Visible& visible, float (&scores)[kScores]) {
    ptx::settle(scores);
    if constexpr (!kFreeLate) free_keys();
    used_ = kFirst ? uniform(tile_->used) : kConfig.k_tile;
    apply_rules(visible, scores);
  }

  // Of the scores that were last: K is free, and Q behind the last ones of a tile of queries.
  __device__ __forceinline__ void free_keys() {
    release(shared_.barriers.k_empty[k_place().stage]);
    ++step_;
    if (key_ == first_key_) release(shared_.barriers.q_empty[warpgroup_][q_place().stage]);
  }

  // The product with V has come: its stage is free, and the registers of its weights.
  __device__ __forceinline__ void take_values(std::uint32_t behind, float (&out)[kOut]) {
    ptx::wait_products<0>();
    ptx::settle(out);
    release(shared_.barriers.v_empty[place_of<kConfig.stages>(step_ - behind).stage]);
  }

  // Waits for the V of the scores that were last. The rows of another sequence, behind the end of
  // this one, become zeros: their weights are 0, but 0 * NaN is NaN. Every warpgroup writes the
  // same zeros.
  __device__ __forceinline__ void wait_values() {
    wait_full(shared_.barriers.v_full, v_place());
    if (used_ >= kConfig.k_tile) return;
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

  // Warpgroups take turns: while one has its products in the tensor cores, the others compute
  // exponentials.
  __device__ __forceinline__ void take_turn() { ptx::sync_named(kTurnBarrier + warpgroup_, 256); }
  __device__ __forceinline__ void give_turn() {
    ptx::arrive_named(kTurnBarrier + (warpgroup_ + 1) % kConfig.warpgroups(), 256);
  }

  // The first row of this warp.
  __device__ __forceinline__ std::int32_t own_row() const {
    return tile_->row + warpgroup_ * tile::kRows + threadIdx.x % 128 / 32 * tile::kWarpRows;
  }

  // What the lane's rows see of the tile of keys whose scores are being computed: the mask rule
  // (math/mask_rule.h) as bits (tile/bands.h), while the tensor cores work.
  __device__ __forceinline__ Visible look() const {
    // Few tiles are cut by both edges.
    const bool begins = key_ < full_begin_;
    const bool ends = key_ >= full_end_;
    Visible visible = {!begins && !ends, {~0u, ~0u}};
    if (visible.all) return visible;
    const int lane = threadIdx.x % 32;
    const std::int32_t own = own_row() + tile::lane_row(lane, 0);
    const tile::FragmentColumns before = {key_ * kConfig.k_tile, tile::lane_column(lane)};
    const auto low_bits = [&](std::int32_t key) { return tile::low_bits(before(key)); };
    if (ends) {
#pragma unroll
      for (int which = 0; which < tile::kRowsPerLane; ++which)
        visible.bits[which] = low_bits(tile_->edges.end(own + tile::lane_row(0, which)));
    }
    if (begins) {
#pragma unroll
      for (int which = 0; which < tile::kRowsPerLane; ++which)
        visible.bits[which] &= ~low_bits(tile_->edges.begin(own + tile::lane_row(0, which)));
    }
    return visible;
  }

  // From products to scores: score rule and mask. The score rule leaves no registers for what was
  // found before it.
  __device__ __forceinline__ void apply_rules(const Visible& visible, float (&scores)[kScores]) {
    if constexpr (kConfig.general) {
      apply_score_rule(own_row(), key_ * kConfig.k_tile, scores);
      hide(look(), scores);
    } else {
      hide(visible, scores);
    }
  }

  __device__ __forceinline__ static void hide(const Visible& visible, float (&scores)[kScores]) {
    if (visible.all) return;
    // Row by row: ptxas makes predicates of seven neighbouring bits at once (R2P), not of two.
    // NOTE: beside as much of out as at D 256 that costs it a register more than there are.
    constexpr bool kByRow = kOut <= 64;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int n = i % (kScores / 2);  // of a row
      const int r = kByRow ? n / 2 * 4 + i / (kScores / 2) * 2 + n % 2 : i;
      const std::uint32_t bit = 1u << tile::FragmentLayout::bit(r);
      scores[r] = math::masked((visible.bits[tile::register_row(r)] & bit) != 0, scores[r]);
    }
  }

  __device__ __forceinline__ void apply_score_rule(std::int32_t own_row, std::int32_t column,
                                                   float (&scores)[kScores]) {
    const problem::Problem& problem = parameters_.problem;
    const int lane = threadIdx.x % 32;
    const float scale = static_cast<float>(problem.scale);
    const float cap = static_cast<float>(problem.softcap);
    float slope = 0;
    if (problem.alibi_slopes.present()) {
      const std::int64_t place = problem.alibi_slopes.offset(tile_->batch, tile_->head, 0);
      slope = static_cast<const float*>(problem.alibi_slopes.data)[place];
    }
#pragma unroll
    for (int r = 0; r < kScores; ++r) {
      float score = scores[r] * scale;
      if (cap > 0) score = math::softcapped(score, cap);
      if (slope != 0) {
        const std::int32_t row = own_row + tile::lane_row(lane, tile::register_row(r));
        const std::int32_t key = column + tile::lane_column(lane) + tile::register_column(r);
        score += math::alibi(slope, static_cast<float>(row + tile_->diagonal - key));
      }
      scores[r] = score;
    }
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  int warpgroup_;
  const Tile* tile_ = nullptr;  // whose scores are computed
  std::uint32_t slot_ = 0;      // its number
  std::int32_t key_ = 0;        // the tile of keys, from the last to first_key_
  std::int32_t first_key_ = 0;
  std::int32_t full_begin_ = 0;  // tiles of keys of which every row of this warpgroup sees all
  std::int32_t full_end_ = 0;
  std::int32_t used_ = 0;            // rows of V in the tile whose scores were last
  const Tile* unwritten_ = nullptr;  // closed as closed_ says, its rows still in out
  Closed closed_ = {};
  bool fresh_ = true;       // out begins with the next product
  std::uint32_t step_ = 0;  // tiles of keys whose scores are done
};

}  // namespace tilewise::cuda::sm90
