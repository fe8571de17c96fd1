// The consumer warpgroup that owns dK: FlashAttention-2 backward (arXiv 2307.08691, Algorithm 2),
// lines 14, 15 and 17 and half of line 16.
#pragma once

#include "cuda/backward/sm90/pair/non_finite_pass.cuh"
#include "cuda/ptx/ldmatrix.cuh"

namespace tilewise::cuda::backward::sm90::pair {

template <KernelConfig kConfig>
class KeyConsumer : public NonFinitePass<kConfig> {
 public:
  using Base = NonFinitePass<kConfig>;

  __device__ __forceinline__ KeyConsumer(const Parameters& parameters, Shared<kConfig>& shared,
                                         int rank)
      : Base(parameters, shared, rank, 1) {}

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
      Base::visit_again(tiles, [&](std::int32_t, std::int32_t q_tile, std::uint32_t number) {
        step_again(q_tile, number);
      });
    }
    const Problem& problem = parameters_.problem;
    Base::store_sums(problem.dk, problem.head_dim, static_cast<float>(problem.scale),
                     parameters_.wide_dk);
  }

 private:
  using Base::kScores;
  using Base::packed_;
  using Base::parameters_;
  using Base::rank_;
  using Base::scores_;
  using Base::shared_;
  using Base::stage_of;
  using Base::sums_;
  using typename Base::Block;
  using typename Base::Tiles;

  // dP of the next tile is issued after dQ of this one, for which the other warpgroup waits.
  __device__ __forceinline__ void visit(const Tiles& tiles) {
    float dq[kBlockRegisters];
    std::int32_t q_tile = tiles.begin;
    cuda::sm90::wait_full(shared_.dout_barriers, Base::phase_of(0));
    Base::issue_scores(shared_.v, shared_.dout, 0);  // dP = dO V^T
    ptx::wgmma_wait<0>();
    ptx::fence_operand(scores_);
#pragma unroll 1
    for (std::uint32_t t = 0; t < tiles.count; ++t) {
      const PipelineState<kConfig.stages> at = stage_of(t);
      Base::release_both(shared_.dout_barriers.empty[0]);
      cuda::sm90::wait_full(shared_.q_barriers, at);
      ptx::mbarrier_wait(ptx::shared_address(&shared_.probs_full), Base::phase_of(t).phase);
      std::uint32_t probs[kScores / 2];
      load_probs(probs);
      Base::compute_gradients(at.stage, probs, scores_);  // dS = P (dP - delta)
      Base::pack_visible(q_tile, at.stage, tiles.is_masked(q_tile), scores_, packed_);
      Base::template store_scores<kKeys>(packed_, shared_.gradients);
      send_gradients();
      Base::issue_sums(shared_.q[at.stage]);  // dK += dS^T Q
      Base::wait(shared_.gradients_full, t);
      Base::issue_dq(dq);  // dQ = dS K
      if (t + 1 < tiles.count) cuda::sm90::wait_full(shared_.dout_barriers, Base::phase_of(t + 1));
      // dP of the next tile; not used after the last one
      Base::issue_scores(shared_.v, shared_.dout, Base::hidden_zero(t));
      ptx::wgmma_wait<1>();  // dK and dQ are there
      ptx::fence_operand(sums_);
      ptx::fence_operand(packed_);
      ptx::fence_operand(dq);
      Base::release_both(shared_.q_barriers.empty[at.stage]);
      Base::finish_dq(t, dq);
      q_tile = tiles.after(q_tile);
      ptx::wgmma_wait<0>();  // dP is there
      ptx::fence_operand(scores_);
    }
  }

  __device__ __forceinline__ void load_probs(std::uint32_t (&probs)[kScores / 2]) const {
#pragma unroll
    for (int step = 0; step < kScores / 8; ++step) {
      std::uint32_t four[4];
      ptx::ldmatrix_x4(four, Base::template step_address<kKeys>(shared_.gradients, step));
#pragma unroll
      for (int i = 0; i < 4; ++i) probs[4 * step + i] = four[i];
    }
  }

  // Sends the warp's rows of dS^T to the other block, and announces them in this one.
  __device__ __forceinline__ void send_gradients() const {
    constexpr std::uint32_t kBytes = tile::kWarpRows * tile::kPanelRowBytes;
    ptx::fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
    const std::uint32_t offset = Base::warp_row() * tile::kPanelRowBytes;
    const std::uint32_t full = ptx::shared_address(&shared_.gradients_full);
    ptx::mbarrier_arrive_expect_tx(full, kBytes);
    ptx::bulk_copy_cluster(
        ptx::cluster_address(ptx::shared_address(shared_.peer_gradients) + offset, 1 - rank_),
        ptx::shared_address(shared_.gradients) + offset, kBytes,
        ptx::cluster_address(full, 1 - rank_));
  }

  __device__ __forceinline__ void step_again(std::int32_t q_tile, std::uint32_t number) {
    const PipelineState<kConfig.stages> at = stage_of(number);
    cuda::sm90::wait_full(shared_.q_barriers, at);
    cuda::sm90::wait_full(shared_.dout_barriers, Base::phase_of(number));
    Base::issue_scores(shared_.v, shared_.dout, Base::hidden_zero(number));
    ptx::wgmma_wait<0>();
    ptx::fence_operand(scores_);
    Base::zero_queries(at.stage, [&] {
      std::uint32_t probs[kScores / 2];
      load_probs(probs);
      Base::compute_gradients(at.stage, probs, scores_);
      pack_scores<kConfig.fp16>(scores_, packed_);
      const typename Base::HiddenBits hidden = {Base::hidden_bits(0), Base::hidden_bits(1)};
      Base::hide_masked(q_tile, at.stage, hidden, packed_);
    });
    Base::issue_sums(shared_.q[at.stage]);
    ptx::wgmma_wait<0>();
    ptx::fence_operand(sums_);
    Base::release_both(shared_.q_barriers.empty[at.stage]);
    Base::release_both(shared_.dout_barriers.empty[0]);
  }
};

}  // namespace tilewise::cuda::backward::sm90::pair
