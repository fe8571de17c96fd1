// A consumer warpgroup: FlashAttention-2 backward (arXiv 2307.08691, Algorithm 2) for 64 keys.
#pragma once

#include "cuda/backward/sm90/non_finite_pass.cuh"
#include "cuda/backward/sm90/store_rows.cuh"

namespace tilewise::cuda::backward::sm90 {

template <KernelConfig kConfig>
class Consumer : public NonFinitePass<kConfig> {
 public:
  using Base = NonFinitePass<kConfig>;
  using Base::Base;

  __device__ __forceinline__ void run() {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.keys_full), 0);
    zero_non_finite_keys();
    clear_gradients();
    const std::int32_t group = static_cast<std::int32_t>(parameters_.problem.group);
#pragma unroll 1
    for (std::int32_t i = 0; i < group; ++i) visit_head(shared_.tile.kv_head * group + i);
    const bool again = ends_non_finite();
    // dQ of the last tile leaves its memory.
    if (tiles_ > 0)
      cuda::sm90::wait_empty(shared_.dq_barriers[warpgroup_], cuda::sm90::state_after<1>(tiles_));
    if (again) {
      clear_gradients();
      visit_again();
    }
    store();
  }

 private:
  using Base::clear_gradients;
  using Base::compute_gradients;
  using Base::compute_probs;
  using Base::dk_;
  using Base::dprobs_;
  using Base::dv_;
  using Base::ends_non_finite;
  using Base::gradients_;
  using Base::issue_dov;
  using Base::issue_qk;
  using Base::kGradients;
  using Base::kKTile;
  using Base::mask_;
  using Base::multiply;
  using Base::multiply_gradients;
  using Base::pack_gradients;
  using Base::parameters_;
  using Base::probs_;
  using Base::scores_;
  using Base::search_bits;
  using Base::shared_;
  using Base::slope_;
  using Base::stage_of;
  using Base::store_scores;
  using Base::tiles_;
  using Base::visit_again;
  using Base::warp_row;
  using Base::warpgroup_;
  using Base::zero_non_finite_keys;

  // The tiles of queries of one head. A shuffle shows ptxas that bounds and counts are the same in
  // all lanes, so that numbers that depend on them stay in uniform registers.
  __device__ __forceinline__ void visit_head(std::int32_t head) {
    std::int32_t begin = 0, end, full_begin = 0, full_end = 0;
    if constexpr (kConfig.block_mask) {
      end = cuda::sm90::uniform(listed_count(parameters_, shared_.tile, head));
    } else {
      begin = cuda::sm90::uniform(mask_.tiles().begin);
      end = cuda::sm90::uniform(mask_.tiles().end);
      full_begin = cuda::sm90::uniform(mask_.full_tiles().begin);
      full_end = cuda::sm90::uniform(shared_.non_finite_keys != 0 ? 0 : mask_.full_tiles().end);
    }
    if (begin >= end) return;
    if constexpr (kConfig.score_mod && !kConfig.block_mask) slope_ = this->slope_of(head);
    cuda::sm90::wait_full(shared_.q_barriers, stage_of(tiles_));
    issue_qk(stage_of(tiles_).stage);
#pragma unroll 1
    for (std::int32_t q_tile = begin; q_tile < end; ++q_tile) {
      step(q_tile, q_tile < full_begin || q_tile >= full_end, q_tile > begin, q_tile + 1 < end);
      ++tiles_;
    }
    ptx::wgmma_wait<0>();  // dK, and an S that is not used
    ptx::fence_operand(scores_);
    ptx::fence_operand(dk_);
    ptx::fence_operand(gradients_);
    cuda::sm90::release(shared_.q_barriers.empty[stage_of(tiles_ - 1).stage]);
    float dq[kBlockRegisters];
    wait_gradients(tiles_ - 1);
    multiply_gradients(tiles_ - 1, dq);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::fence_operand(dq);
    stage_dq(tiles_ - 1, dq);
    ptx::fence_proxy_async();
    __syncwarp();
    cuda::sm90::release(shared_.dq_barriers[warpgroup_].full[0]);
  }

  // A tile of queries: Algorithm 2, lines 11 to 16. S has been issued; S of the next tile is issued
  // here. dQ is that of the tile before, so that the warpgroups need not be at the same point.
  // Products are issued as early as registers allow: dK, for instance, before dS is stored, which
  // only dQ needs.
  __device__ __forceinline__ void step(std::int32_t q_tile, bool masked, bool has_previous,
                                       bool has_next) {
    const PipelineState<kConfig.stages> at = stage_of(tiles_);
    ptx::wgmma_wait<0>();  // S = Q K^T is there, and dK of the tile before
    ptx::fence_operand(scores_);
    ptx::fence_operand(dk_);
    ptx::fence_operand(gradients_);
    if (has_previous) cuda::sm90::release(shared_.q_barriers.empty[stage_of(tiles_ - 1).stage]);
    cuda::sm90::wait_full(shared_.dout_barriers, at);
    if constexpr (kConfig.block_mask) {
      masked = (shared_.listed.bits_of[at.stage] != tile::kFullTile) | shared_.non_finite_keys;
      if (shared_.listed.bits_of[at.stage] == tile::kSearchedTile) search_bits(tiles_);
    }
    issue_dov(at.stage);  // dP = dO V^T
    if constexpr (kConfig.block_mask && kConfig.score_mod)
      q_tile = shared_.listed.order[tiles_ % kListedOrder].q_tile;
    compute_probs(q_tile, at.stage, masked);        // P = exp(S - LSE)
    multiply(probs_, shared_.dout[at.stage], dv_);  // dV += P^T dO
    ptx::wgmma_commit();

    ptx::wgmma_wait<1>();  // dP is there
    ptx::fence_operand(dprobs_);
    compute_gradients(at.stage);  // dS = P (dP - delta)
    float dq[kBlockRegisters];
    if (has_previous) wait_gradients(tiles_ - 1);
    multiply_gradients(tiles_ - 1, dq);  // dQ = dS K; not used if there is no tile before
    ptx::wgmma_commit();
    pack_gradients(q_tile, at.stage, masked);
    multiply(gradients_, shared_.q[at.stage], dk_);  // dK += dS^T Q
    ptx::wgmma_commit();
    store_scores(gradients_, shared_.gradients[tiles_ % kScoreStages]);
    ptx::wgmma_wait<1>();  // dV and dQ are there
    ptx::fence_operand(dv_);
    ptx::fence_operand(probs_);
    ptx::fence_operand(dq);
    cuda::sm90::release(shared_.dout_barriers.empty[at.stage]);
    if (has_previous) stage_dq(tiles_ - 1, dq);
    if (has_next) cuda::sm90::wait_full(shared_.q_barriers, stage_of(tiles_ + 1));
    issue_qk(stage_of(has_next ? tiles_ + 1 : tiles_).stage);  // S of the next tile
    ptx::fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      ptx::mbarrier_arrive(ptx::shared_address(&shared_.gradients_full[tiles_ % kScoreStages]));
      if (has_previous)
        ptx::mbarrier_arrive(ptx::shared_address(&shared_.dq_barriers[warpgroup_].full[0]));
    }
  }

  // Waits until both warpgroups have stored dS of a tile.
  __device__ __forceinline__ void wait_gradients(std::uint32_t tile) const {
    const PipelineState<kScoreStages> at = cuda::sm90::state_after<kScoreStages>(tile);
    ptx::mbarrier_wait(ptx::shared_address(&shared_.gradients_full[at.stage]), at.phase);
  }

  // Hands dQ of a tile to the reducer (reducer.cuh).
  __device__ __forceinline__ void stage_dq(std::uint32_t tile, const float (&dq)[kBlockRegisters]) {
    cuda::sm90::wait_empty(shared_.dq_barriers[warpgroup_], cuda::sm90::state_after<1>(tile));
    float* const to = shared_.dq[warpgroup_] + threadIdx.x % 128 * 4;
#pragma unroll
    for (int i = 0; i < kBlockRegisters / 4; ++i) {
      *reinterpret_cast<float4*>(to + i * kSumsStep) =
          make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    }
  }

  // ---- the end of the block ----

  __device__ __forceinline__ void store() const {
    const Problem& problem = parameters_.problem;
    const KeyTile& tile = shared_.tile;
    const std::int64_t batch = problem.k_packed ? 0 : tile.sequence.batch;
    // Keys of a dense tensor after the sequence's end (seqused_k) have gradients of 0.
    const std::int32_t length =
        static_cast<std::int32_t>(problem.k_packed ? tile.sequence.k_len : problem.k_rows);
    const std::int32_t rows = math::min(length - tile.first, kKTile);
    const std::int64_t row = tile.sequence.k_start + tile.first;
    if (problem.dk.present()) {
      store_rows({problem.dk, problem.dk.offset(batch, tile.kv_head, row), rows,
                  static_cast<std::int32_t>(problem.head_dim), static_cast<float>(problem.scale)},
                 parameters_.wide_dk, dk_);
    }
    if (problem.dv.present()) {
      store_rows({problem.dv, problem.dv.offset(batch, tile.kv_head, row), rows,
                  static_cast<std::int32_t>(problem.value_dim), 1},
                 parameters_.wide_dv, dv_);
    }
  }

  __device__ __forceinline__ void store_rows(const Destination& to, bool wide,
                                             const float (&values)[kGradients]) const {
    StagedPanel* const staged = reinterpret_cast<StagedPanel*>(shared_.dq[warpgroup_]);
#pragma unroll
    for (int panel = 0; panel < kConfig.columns / tile::kPanelColumns; ++panel) {
      store_panel<kConfig.fp16>(to, warp_row(), panel * tile::kPanelColumns, wide,
                                staged[threadIdx.x % 128 / 32], values + 32 * panel);
    }
  }
};

}  // namespace tilewise::cuda::backward::sm90
