// The consumer warpgroup that owns dV: FlashAttention-2 backward (arXiv 2307.08691, Algorithm 2),
// lines 11 to 13 and half of line 16.
#pragma once

#include "cuda/backward/sm90/pair/non_finite_pass.cuh"

namespace tilewise::cuda::backward::sm90::pair {

template <KernelConfig kConfig>
class ValueConsumer : public NonFinitePass<kConfig> {
 public:
  using Base = NonFinitePass<kConfig>;

  __device__ __forceinline__ ValueConsumer(const Parameters& parameters, Shared<kConfig>& shared,
                                           int rank)
      : Base(parameters, shared, rank, 0) {}

  __device__ __forceinline__ void run() {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.keys_full), 0);
    Base::zero_non_finite_keys();
    Base::clear_sums();
    const Tiles tiles = Base::tiles();
    if (tiles.count > 0) visit(tiles);
    const bool again = Base::ends_non_finite();
    Base::wait_for_dq(tiles.count);
    if (again) {
      Base::clear_sums();
      Base::visit_again(tiles, [&](std::int32_t head, std::int32_t q_tile, std::uint32_t number) {
        step_again(head, q_tile, number);
      });
    }
    const Problem& problem = parameters_.problem;
    Base::store_sums(problem.dv, problem.value_dim, 1, parameters_.wide_dv);
  }

 private:
  using Base::packed_;
  using Base::parameters_;
  using Base::scores_;
  using Base::shared_;
  using Base::stage_of;
  using Base::sums_;
  using typename Base::Tiles;

  // S of the next tile is issued before dQ of this one, for which both warpgroups and both blocks
  // have to compute dS first. P goes where dS lay, after dQ has read it. NOTE: ptxas serialises
  // wgmma if a product is in flight from one iteration to the next.
  __device__ __forceinline__ void visit(const Tiles& tiles) {
    float dq[kBlockRegisters];
    std::int32_t q_tile = tiles.begin;
    cuda::sm90::wait_full(shared_.q_barriers, stage_of(0));
    Base::issue_scores(shared_.k, shared_.q[0], 0);  // S = Q K^T
    ptx::wgmma_wait<0>();
    ptx::fence_operand(scores_);
    compute_packed_probs(tiles, q_tile, 0);
    __syncwarp();
    Base::release_both(shared_.q_barriers.empty[0]);
#pragma unroll 1
    for (std::uint32_t t = 0; t < tiles.count; ++t) {
      if (t > 0) Base::wait(shared_.gradients_empty, t - 1);
      Base::template store_scores<kKeys>(packed_, shared_.gradients);
      __syncwarp();
      cuda::sm90::release(shared_.probs_full);
      cuda::sm90::wait_full(shared_.dout_barriers, Base::phase_of(t));
      Base::issue_sums(shared_.dout);  // dV += P^T dO
      const bool has_next = t + 1 < tiles.count;
      const int next = stage_of(has_next ? t + 1 : t).stage;
      if (has_next) cuda::sm90::wait_full(shared_.q_barriers, stage_of(t + 1));
      // S of the next tile; not used after the last one
      Base::issue_scores(shared_.k, shared_.q[next], Base::hidden_zero(t));
      ptx::wgmma_wait<1>();  // dV is there
      ptx::fence_operand(sums_);
      ptx::fence_operand(packed_);
      Base::release_both(shared_.dout_barriers.empty[0]);
      Base::wait(shared_.gradients_full, t);
      Base::issue_dq(dq);    // dQ = dS K
      ptx::wgmma_wait<1>();  // S is there
      ptx::fence_operand(scores_);
      q_tile = tiles.after(q_tile);
      compute_packed_probs(tiles, q_tile, next);
      ptx::wgmma_wait<0>();  // dQ is there
      ptx::fence_operand(dq);
      if (has_next) Base::release_both(shared_.q_barriers.empty[next]);
      Base::finish_dq(t, dq);
    }
  }

  // P = exp(S - LSE), masked and rounded.
  __device__ __forceinline__ void compute_packed_probs(const Tiles& tiles, std::int32_t q_tile,
                                                       int stage) {
    Base::compute_probs(stage, scores_);
    Base::pack_visible(q_tile, stage, tiles.is_masked(q_tile), scores_, packed_);
  }

  __device__ __forceinline__ void step_again(std::int32_t head, std::int32_t q_tile,
                                             std::uint32_t number) {
    const PipelineState<kConfig.stages> at = stage_of(number);
    cuda::sm90::wait_full(shared_.q_barriers, at);
    Base::issue_scores(shared_.k, shared_.q[at.stage], Base::hidden_zero(number));
    ptx::wgmma_wait<0>();
    ptx::fence_operand(scores_);
    typename Base::HiddenBits hidden;
    Base::find_hidden(scores_, hidden);
    Base::compute_probs(at.stage, scores_);
    pack_scores<kConfig.fp16>(scores_, packed_);
    Base::hide_masked(q_tile, at.stage, hidden, packed_);
    Base::template store_scores<kKeys>(packed_, shared_.gradients);
    cuda::sm90::wait_full(shared_.dout_barriers, Base::phase_of(number));
    Base::zero_queries(at.stage, [&] { Base::add_non_finite_rows(head, q_tile); });
    Base::issue_sums(shared_.dout);
    ptx::wgmma_wait<0>();
    ptx::fence_operand(sums_);
    Base::release_both(shared_.q_barriers.empty[at.stage]);
    Base::release_both(shared_.dout_barriers.empty[0]);
  }
};

}  // namespace tilewise::cuda::backward::sm90::pair
