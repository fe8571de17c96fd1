// A consumer: a warpgroup that computes 64 rows of a tile of queries. FlashAttention-3 (arXiv
// 2407.08608), Algorithm 2: while the tensor cores multiply one tile of keys, the exponentials of
// the next are computed, within the warpgroup (two products in flight) and between warpgroups (they
// take turns at the tensor cores).
#pragma once

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/shared.cuh"
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
  static constexpr int kOut = kConfig.head_dim / 2;
  // Exponentials before the wait for the product with V, or after it, where packing them fills the
  // gaps that they leave. NOTE: with three warpgroups the others fill them (D 64, S 16384: 531
  // TFLOP/s before, 514 after), with two nobody does (D 128, S 8192: 638 and 652).
  static constexpr bool kWeighsFirst = kConfig.warpgroups() == 3;

  __device__ Consumer(const Parameters& parameters, Shared<kConfig>& shared, int warpgroup)
      : parameters_(parameters), shared_(shared), warpgroup_(warpgroup) {
    // The first warpgroup has the first turn.
    if (warpgroup_ == kConfig.warpgroups() - 1) ptx::arrive_named(kTurnBarrier, 256);
  }

  // out (64, D) and the states of its rows, for the tile in shared memory.
  __device__ __forceinline__ void attend(const Tile& tile, float (&out)[kOut],
                                         tile::RowStates& states) {
    float scores[kScores];
    std::uint32_t weights[kScores / 2];
    states.clear();
#pragma unroll
    for (float& x : out) x = 0;
    if (tile.first_key >= tile.end_key) {
      release(shared_.barriers.q_empty[warpgroup_]);
      return;
    }
    std::int32_t key = tile.end_key - 1;
    wait_full(shared_.barriers.k_full, k_place_);
    multiply_scores(scores);
    ptx::wait_products<0>();
    take_scores(tile, key, scores);
    const tile::Anchors first = tile::raise(scores, states, parameters_.unit);
    wait_values(tile, key);
    tile::weigh(scores, first, states, parameters_.unit);
    tile::pack<kConfig.fp16>(scores, weights);
    while (--key >= tile.first_key) {
      wait_full(shared_.barriers.k_full, k_place_);
      take_turn();
      multiply_scores(scores);
      multiply_values<true>(weights, out);
      ptx::wait_products<1>();
      take_scores(tile, key, scores);
      const tile::Anchors anchors = tile::raise(scores, states, parameters_.unit);
      if constexpr (kWeighsFirst) weigh_at_once(scores, anchors, states);
      wait_values(tile, key);
      take_values(out);
      tile::rescale(out, anchors.factor);
      if constexpr (!kWeighsFirst) tile::weigh(scores, anchors, states, parameters_.unit);
      tile::pack<kConfig.fp16>(scores, weights);
    }
    multiply_values<false>(weights, out);
    take_values(out);
  }

 private:
  // scores (64, k_tile) = Q K^T, started.
  __device__ __forceinline__ void multiply_scores(float (&scores)[kScores]) {
    // Steps move the address in a descriptor, which counts 16 bytes and never leaves its 14 bits.
    const std::uint64_t q = tile::rows_descriptor(
        ptx::shared_address(shared_.q + warpgroup_ * tile::kRows * kConfig.head_dim * 2));
    const std::uint64_t k = tile::rows_descriptor(ptx::shared_address(shared_.k[k_place_.stage]));
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

  // out (64, D) += weights (64, k_tile) V, started. The next warpgroup gets its turn before the
  // end: it takes as long to begin as the last steps take.
  template <bool kTurn>
  __device__ __forceinline__ void multiply_values(const std::uint32_t (&weights)[kScores / 2],
                                                  float (&out)[kOut]) {
    const std::uint64_t v = tile::columns_descriptor(ptx::shared_address(shared_.v[v_place_.stage]),
                                                     kConfig.k_tile * tile::kPanelRowBytes);
    ptx::begin_products();
#pragma unroll
    for (int step = 0; step < kConfig.k_tile / kSteps; ++step) {
      if (kTurn && step == kConfig.k_tile / kSteps - kEarly) give_turn();
      ptx::Product<kConfig.head_dim>::template values<kConfig.fp16>(
          out, weights + 4 * step, v + step * kSteps * tile::kPanelRowBytes / 16);
    }
    ptx::commit_products();
    v_place_.advance();
  }

  // Scores have come: K is free, and Q after the last ones.
  __device__ __forceinline__ void take_scores(const Tile& tile, std::int32_t key,
                                              float (&scores)[kScores]) {
    ptx::settle(scores);
    release(shared_.barriers.k_empty[k_place_.stage]);
    k_place_.advance();
    if (key == tile.first_key) release(shared_.barriers.q_empty[warpgroup_]);
    apply_rules(tile, key, scores);
  }

  __device__ __forceinline__ void weigh_at_once(float (&scores)[kScores],
                                                const tile::Anchors& anchors,
                                                tile::RowStates& states) {
    tile::weigh(scores, anchors, states, parameters_.unit);
    ptx::settle(scores);
  }

  // The product with V has come: its stage is free, and the registers of its weights.
  //
  // NOTE: behind a wait at a memory barrier, whose loop ends a basic block: in one block with the
  // maxima, ptxas 13.0 waits for the products first, and the maxima run beside nothing (D 128, S
  // 8192: 609 TFLOP/s, not 650).
  __device__ __forceinline__ void take_values(float (&out)[kOut]) {
    ptx::wait_products<0>();
    ptx::settle(out);
    release(shared_.barriers.v_empty[(v_place_.stage + kConfig.stages - 1) % kConfig.stages]);
  }

  // Waits for V. The rows of another sequence, behind the end of this one, become zeros: their
  // weights are 0, but 0 * NaN is NaN. Every warpgroup writes the same zeros.
  __device__ __forceinline__ void wait_values(const Tile& tile, std::int32_t key) {
    wait_full(shared_.barriers.v_full, v_place_);
    if (!tile.clear || key != tile.end_key - 1) return;
    const std::int32_t used = tile.edges.key_end - key * kConfig.k_tile;
    unsigned char* const v = shared_.v[v_place_.stage];
    constexpr int kRowChunks = tile::kPanelRowBytes / tile::kChunkBytes;
    for (int chunk = threadIdx.x % 128; chunk < kConfig.k_bytes() / tile::kChunkBytes;
         chunk += 128) {
      if (chunk / kRowChunks % kConfig.k_tile < used) continue;
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

  // From products to scores: score rule and mask (math/score_rule.h, math/mask_rule.h).
  __device__ __forceinline__ void apply_rules(const Tile& tile, std::int32_t key,
                                              float (&scores)[kScores]) {
    const int lane = threadIdx.x % 32;
    const std::int32_t first = tile.row + warpgroup_ * tile::kRows;
    const std::int32_t last = min(first + tile::kRows, tile.q_len) - 1;
    const std::int32_t column = key * kConfig.k_tile;
    const std::int32_t own_row = first + threadIdx.x % 128 / 32 * tile::kWarpRows;
    if constexpr (kConfig.general) apply_score_rule(tile, own_row, column, scores);
    if (tile.edges.full(first, last, column, column + kConfig.k_tile)) return;
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      const std::int32_t row = own_row + tile::lane_row(lane, which);
      const std::int32_t begin = tile.edges.begin(row) - column - tile::lane_column(lane);
      const std::int32_t end = tile.edges.end(row) - column - tile::lane_column(lane);
#pragma unroll
      for (int r = 0; r < kScores; ++r) {
        if (tile::register_row(r) != which) continue;
        const int place = tile::register_column(r);
        scores[r] = math::masked(place >= begin && place < end, scores[r]);
      }
    }
  }

  __device__ __forceinline__ void apply_score_rule(const Tile& tile, std::int32_t own_row,
                                                   std::int32_t column, float (&scores)[kScores]) {
    const problem::Problem& problem = parameters_.problem;
    const int lane = threadIdx.x % 32;
    const float scale = static_cast<float>(problem.scale);
    const float cap = static_cast<float>(problem.softcap);
    float slope = 0;
    if (problem.alibi_slopes.present()) {
      const std::int64_t place = problem.alibi_slopes.offset(tile.batch, tile.head, 0);
      slope = static_cast<const float*>(problem.alibi_slopes.data)[place];
    }
#pragma unroll
    for (int r = 0; r < kScores; ++r) {
      float score = scores[r] * scale;
      if (cap > 0) score = math::softcapped(score, cap);
      if (slope != 0) {
        const std::int32_t row = own_row + tile::lane_row(lane, tile::register_row(r));
        const std::int32_t key = column + tile::lane_column(lane) + tile::register_column(r);
        score += math::alibi(slope, static_cast<float>(row + tile.diagonal - key));
      }
      scores[r] = score;
    }
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  int warpgroup_;
  Place<kConfig.stages> k_place_;
  Place<kConfig.stages> v_place_;
};

}  // namespace tilewise::cuda::sm90
