// The pass for non-finite values in the Hopper backward kernel.
//
// A masked pair has P = 0 and dS = 0, but 0 * NaN is NaN. Non-finite elements of K are zero from
// the start. If dK or dV ends with a non-finite value, and Q or dO hides one (hidden_values.cuh), a
// second pass computes both again, with zeros in the place of the non-finite elements of Q and dO.
// A visible one of Q has made P NaN; the contribution of a visible one of dO to dV is added by
// itself.
#pragma once

#include "cuda/backward/hidden_values.cuh"
#include "cuda/backward/sm90/consumer_math.cuh"
#include "cuda/backward/sm90/zero_tile.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm80/work_tile.cuh"
#include "cuda/sm90/named_barriers.h"
#include "cuda/tile/non_finite.cuh"
#include "cuda/tile/slow_path.cuh"

namespace tilewise::cuda::backward::sm90 {

template <KernelConfig kConfig>
class NonFinitePass : public ConsumerMath<kConfig> {
 public:
  using Base = ConsumerMath<kConfig>;
  using Base::Base;

 protected:
  using Base::compute_gradients;
  using Base::dk_;
  using Base::dprobs_;
  using Base::dv_;
  using Base::gradients_;
  using Base::issue_dov;
  using Base::issue_qk;
  using Base::kGradients;
  using Base::kKTile;
  using Base::mask_;
  using Base::multiply;
  using Base::parameters_;
  using Base::probs_;
  using Base::scores_;
  using Base::search_bits;
  using Base::shared_;
  using Base::slope_;
  using Base::stage_of;
  using Base::store_scores;
  using Base::tiles_;
  using Base::warp_row;
  static constexpr int kFirstThread = 128;  // the first consumer of the block
  static constexpr int kThreads = 128 * KernelConfig::kConsumers;

  __device__ __forceinline__ void meet_consumers() const {
    ptx::named_barrier_sync(cuda::sm90::barrier_of(cuda::sm90::NamedBarrier::kConsumers, 0),
                            kThreads);
  }

  // Calls zero_tile() with all consumers.
  template <int kRows>
  __device__ __forceinline__ static bool zero_non_finite(unsigned char* panels,
                                                         std::uint8_t* flags) {
    return zero_tile<kConfig.fp16, kRows>(
        panels, kConfig.columns / tile::kPanelColumns, flags,
        {static_cast<int>(ptx::opaque(threadIdx.x)) - kFirstThread, kThreads});
  }

  __device__ __forceinline__ void zero_non_finite_keys() {
    if (zero_non_finite<kKTile>(shared_.k, shared_.non_finite_key)) shared_.non_finite_keys = 1;
    ptx::fence_proxy_async();
    meet_consumers();
  }

  // All consumers call it, and the producer, which may have to load again (producer.cuh).
  __device__ __forceinline__ bool ends_non_finite() const {
    float total = 0;  // 0 * x is NaN for what is not finite, and stays in the sum
#pragma unroll
    for (int r = 0; r < kGradients; ++r) total += 0 * dk_[r] + 0 * dv_[r];
    if (!(total == 0)) shared_.found_non_finite = 1;
    meet_consumers();
    if (cuda::sm90::uniform(shared_.found_non_finite) != 0 && shared_.non_finite_keys == 0) {
      const bool hidden = hides_non_finite();
      meet_consumers();
      if (threadIdx.x == kFirstThread) shared_.found_non_finite = 0;
      meet_consumers();
      if (hidden) shared_.found_non_finite = 1;
    }
    __syncwarp();
    cuda::sm90::release(shared_.pass_end);
    ptx::mbarrier_wait(ptx::shared_address(&shared_.pass_end), 0);
    const bool again = cuda::sm90::uniform(shared_.found_non_finite) != 0;
    if (again && threadIdx.x == kFirstThread) tile::count_slow_path(tile::SlowPath::kNonFinitePass);
    return again;
  }

  // Whether this thread finds a value that is not finite in a tile of queries that an edge cuts, or
  // an infinity in another.
  __device__ __forceinline__ bool hides_non_finite() const {
    const Problem& problem = parameters_.problem;
    const Sequence& sequence = shared_.tile.sequence;
    const int thread = static_cast<int>(ptx::opaque(threadIdx.x)) - kFirstThread;
    const std::int64_t batch = problem.q_packed ? 0 : sequence.batch;
    // Rows after the end of the sequence have been loaded as well.
    const std::int64_t rows = problem.q_rows - (problem.q_packed ? sequence.q_start : 0);
    const std::int32_t group = static_cast<std::int32_t>(problem.group);
    bool found = false;
    const auto look = [&](std::int32_t head, std::int32_t q_tile, bool full) {
      const tile::Range own = {q_tile * kConfig.q_tile, (q_tile + 1) * kConfig.q_tile};
      found |= hold_non_finite<kConfig.fp16>(
          cuda::sm80::rows_of<std::uint16_t>(problem.q, batch, head, sequence.q_start, rows,
                                             problem.head_dim, true),
          own, thread, kThreads, full);
      if (full) return;
      found |= hold_non_finite<kConfig.fp16>(
          cuda::sm80::rows_of<std::uint16_t>(problem.dout, batch, head, sequence.q_start, rows,
                                             problem.value_dim, true),
          own, thread, kThreads);
    };
#pragma unroll 1
    for (std::int32_t i = 0; i < group; ++i) {
      const std::int32_t head = shared_.tile.kv_head * group + i;
      if constexpr (kConfig.block_mask) {
        visit_listed(parameters_, shared_.tile, head, [&](std::int32_t q_tile, std::int32_t bits) {
          look(head, q_tile, bits == tile::kFullTile);
        });
      } else {
        const tile::Range tiles = mask_.tiles();
        const tile::Range full = mask_.full_tiles();
#pragma unroll 1
        for (std::int32_t q_tile = tiles.begin; q_tile < tiles.end; ++q_tile) {
          look(head, q_tile, q_tile >= full.begin && q_tile < full.end);
        }
      }
    }
    return found;
  }

  // Visits all tiles of queries once more.
  __device__ __forceinline__ void visit_again() {
    if constexpr (kConfig.block_mask) {
      // There are as many tiles as before. The description of each is read where it is needed: few
      // registers are left.
#pragma unroll 1
      for (const std::uint32_t end = 2 * tiles_; tiles_ != end; ++tiles_) {
        cuda::sm90::wait_full(shared_.q_barriers, stage_of(tiles_));
        step_again(0, shared_.listed.order[tiles_ % kListedOrder].q_tile);
      }
    } else {
      const std::int32_t group = static_cast<std::int32_t>(parameters_.problem.group);
      const std::int32_t first_head = shared_.tile.kv_head * group;
#pragma unroll 1
      for (std::int32_t head = first_head; head < first_head + group; ++head) {
        if constexpr (kConfig.score_mod) slope_ = this->slope_of(head);
        const tile::Range tiles = mask_.tiles();
#pragma unroll 1
        for (std::int32_t q_tile = tiles.begin; q_tile < tiles.end; ++q_tile, ++tiles_)
          step_again(head, q_tile);
      }
    }
  }

  // step() without dQ, and without overlap.
  __device__ __forceinline__ void step_again(std::int32_t head, std::int32_t q_tile) {
    const PipelineState<kConfig.stages> at = stage_of(tiles_);
    cuda::sm90::wait_full(shared_.q_barriers, at);
    if constexpr (kConfig.block_mask) {
      if (shared_.listed.bits_of[at.stage] == tile::kSearchedTile) search_bits(tiles_);
    }
    issue_qk(at.stage);
    ptx::wgmma_wait<0>();
    ptx::fence_operand(scores_);
    find_hidden();
    this->template compute_probs<true>(q_tile, at.stage, true);
    cuda::sm90::wait_full(shared_.dout_barriers, at);
    issue_dov(at.stage);
    ptx::wgmma_wait<0>();
    ptx::fence_operand(dprobs_);
    compute_gradients(at.stage);
    this->template pack_gradients<true>(q_tile, at.stage, true);
    store_scores(probs_, shared_.gradients[0]);
    for (int i = static_cast<int>(ptx::opaque(threadIdx.x)) - kFirstThread; i < kConfig.q_tile;
         i += kThreads)
      shared_.non_finite_query[i] = 0;
    meet_consumers();
    zero_non_finite<kConfig.q_tile>(shared_.dout[at.stage], shared_.non_finite_query);
    meet_consumers();
#pragma unroll 1
    for (int row = 0; row < kConfig.q_tile; ++row) {
      if (shared_.non_finite_query[row] == 0) continue;
      if constexpr (kConfig.block_mask) {
        const ListedTile tile = shared_.listed.order[tiles_ % kListedOrder];
        add_non_finite_row(tile.head, tile.q_tile, row);
      } else {
        add_non_finite_row(head, q_tile, row);
      }
    }
    meet_consumers();
    zero_non_finite<kConfig.q_tile>(shared_.q[at.stage], shared_.non_finite_query);
    ptx::fence_proxy_async();
    meet_consumers();
    multiply(probs_, shared_.dout[at.stage], dv_);
    multiply(gradients_, shared_.q[at.stage], dk_);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::fence_operand(dv_);
    ptx::fence_operand(dk_);
    cuda::sm90::release(shared_.q_barriers.empty[at.stage]);
    cuda::sm90::release(shared_.dout_barriers.empty[at.stage]);
  }

  // A score of -inf masks, even if LSE is NaN. Stores which scores of the lane are -inf, as mask
  // bits in shared memory: there are no registers for them. With a softcap no score is.
  __device__ __forceinline__ void find_hidden() const {
    const bool capped = kConfig.score_mod && parameters_.scaling.cap > 0;
    const float hidden = parameters_.problem.scale < 0 ? math::Limits<float>::kInfinity
                                                       : -math::Limits<float>::kInfinity;
    volatile typename Base::HiddenScores& own = this->hidden_scores();
    const std::uint32_t thread = ptx::opaque(threadIdx.x) % 128;
#pragma unroll
    for (int i = 0; i < Base::kScores / 2; ++i) {
      const int low = scores_[2 * i] == hidden ? 1 : 0;
      const int high = scores_[2 * i + 1] == hidden ? 2 : 0;
      own.pairs[i][thread] = static_cast<std::uint8_t>(capped ? 0 : low | high);
    }
#pragma unroll 1
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      std::uint32_t bits = 0;
#pragma unroll 1
      for (int i = which; i < Base::kScores / 2; i += tile::kRowsPerLane)
        bits |= std::uint32_t{own.pairs[i][thread]} << i / 2 * 2;
      own.bits[which][thread] = bits;
    }
  }

  // Adds P^T dO to dV for the non-finite elements of a row of dO.
  __device__ void add_non_finite_row(std::int32_t head, std::int32_t q_tile, int row) {
    const Problem& problem = parameters_.problem;
    const Sequence& sequence = shared_.tile.sequence;
    const std::int64_t at = sequence.q_start + q_tile * kConfig.q_tile + row;
    const std::uint16_t* const from =
        static_cast<const std::uint16_t*>(problem.dout.data) +
        problem.dout.offset(problem.q_packed ? 0 : sequence.batch, head, at);
    const unsigned char* const probs =
        shared_.gradients[0] + row / tile::kPanelColumns * kKTile * tile::kPanelRowBytes;
    const int lane = static_cast<int>(ptx::opaque(threadIdx.x) % 32);
#pragma unroll
    for (int r = 0; r < kGradients; ++r) {
      const int key = warp_row() + tile::lane_row(lane, tile::register_row(r));
      const int column = tile::register_column(r) + tile::lane_column(lane);
      const std::uint32_t weight = *reinterpret_cast<const std::uint16_t*>(
          probs + tile::swizzled(key, row % tile::kPanelColumns * 2));
      if (weight == 0 || column >= problem.value_dim) continue;
      const std::uint32_t value = from[column];
      if (tile::is_non_finite16<kConfig.fp16>(value))
        dv_[r] += ptx::unpack<kConfig.fp16>(weight, 0) * ptx::unpack<kConfig.fp16>(value, 0);
    }
  }
};

}  // namespace tilewise::cuda::backward::sm90
