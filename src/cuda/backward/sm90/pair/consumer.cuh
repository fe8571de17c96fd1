// The code that both consumer warpgroups of a block of a pair share: products, dQ, and the end of
// the block.
#pragma once

#include "cuda/backward/sm90/pair/shared.cuh"
#include "cuda/backward/sm90/query_gradient.cuh"
#include "cuda/backward/sm90/score_tile.cuh"
#include "cuda/backward/sm90/store_rows.cuh"
#include "cuda/backward/sm90/zero_tile.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/sm90/gemm.cuh"
#include "cuda/sm90/named_barriers.h"

namespace tilewise::cuda::backward::sm90::pair {

template <KernelConfig kConfig>
class Consumer
    : public ScoreTile<kConfig.fp16, kConfig.q_tile, KernelConfig::kKTile, Shared<kConfig>> {
 public:
  using Block = Shared<kConfig>;
  using Base = ScoreTile<kConfig.fp16, kConfig.q_tile, KernelConfig::kKTile, Block>;

  __device__ __forceinline__ Consumer(const Parameters& parameters, Block& shared, int rank,
                                      int warpgroup)
      : Base(parameters, shared, 0, shared.tile.first + rank * kKeys),
        lanes_block_(ptx::cluster_address(ptx::shared_address(&shared),
                                          static_cast<int>(threadIdx.x % kBlocks))),
        rank_(rank),
        warpgroup_(warpgroup) {}

 protected:
  using Base::kScores;
  using Base::mask_;
  using Base::parameters_;
  using Base::shared_;
  static constexpr int kGradients = kConfig.columns / 2;  // registers of dK or dV (64, columns)
  static constexpr int kFirstThread = 128;                // the first consumer of the block
  static constexpr int kThreads = 128 * KernelConfig::kConsumers;

  // The tiles of queries of all heads of the group, one after the other.
  struct Tiles {
    std::int32_t begin, end, full_begin, full_end;  // of a head
    std::uint32_t count;                            // of all heads

    __device__ __forceinline__ bool is_masked(std::int32_t q_tile) const {
      return q_tile < full_begin || q_tile >= full_end;
    }
    __device__ __forceinline__ std::int32_t after(std::int32_t q_tile) const {
      return q_tile + 1 < end ? q_tile + 1 : begin;
    }
  };

  // A shuffle shows ptxas that bounds and counts are the same in all lanes, so that numbers that
  // depend on them stay in uniform registers.
  __device__ __forceinline__ Tiles tiles() const {
    const tile::Range range = mask_.tiles();
    const tile::Range full = mask_.full_tiles();
    const std::int32_t begin = cuda::sm90::uniform(range.begin);
    const std::int32_t end = cuda::sm90::uniform(math::max(range.begin, range.end));
    return {begin, end, cuda::sm90::uniform(full.begin),
            cuda::sm90::uniform(shared_.non_finite_keys != 0 ? 0 : full.end),
            static_cast<std::uint32_t>(end - begin) *
                static_cast<std::uint32_t>(parameters_.problem.group)};
  }

  __device__ __forceinline__ static PipelineState<kConfig.stages> stage_of(std::uint32_t tile) {
    return cuda::sm90::state_after<kConfig.stages>(tile);
  }
  __device__ __forceinline__ static PipelineState<1> phase_of(std::uint32_t tile) {
    return cuda::sm90::state_after<1>(tile);
  }
  __device__ __forceinline__ static void wait(std::uint64_t& barrier, std::uint32_t tile) {
    ptx::mbarrier_wait(ptx::shared_address(&barrier), phase_of(tile).phase);
  }

  // Arrives at the barrier in both blocks, after this warp has read the memory that it guards: the
  // first two lanes arrive at one each. Whole warps call it.
  __device__ __forceinline__ void release_both(std::uint64_t& empty) const {
    const std::uint32_t offset = ptx::shared_address(&empty) - ptx::shared_address(&shared_);
    if (threadIdx.x % 32 < kBlocks) ptx::mbarrier_arrive_cluster(lanes_block_ + offset);
  }

  // Returns 0 in a way that is hidden from ptxas. So ptxas does not keep descriptors of operands
  // from one tile of queries to the next, for which there are no registers.
  __device__ __forceinline__ static std::uint32_t hidden_zero(std::uint32_t tile) {
    return tile >> 31 << 10;
  }

  __device__ __forceinline__ ThreadShare own_share() const {
    return {static_cast<int>(ptx::opaque(threadIdx.x)) - kFirstThread, kThreads};
  }
  __device__ __forceinline__ static void meet_consumers() {
    ptx::named_barrier_sync(cuda::sm90::barrier_of(cuda::sm90::NamedBarrier::kConsumers, 0),
                            kThreads);
  }

  __device__ __forceinline__ void clear_sums() {
#pragma unroll
    for (int r = 0; r < kGradients; ++r) sums_[r] = 0;
    ptx::fence_operand(sums_);
  }

  // ---- products ----

  // scores (64, q_tile) = keys queries^T. One group. `zero`: hidden_zero().
  __device__ __forceinline__ void issue_scores(const unsigned char* keys,
                                               const unsigned char* queries, std::uint32_t zero) {
    cuda::sm90::gemm_ss<kConfig.fp16, kConfig.q_tile, kConfig.columns, kConfig.q_tile, kKeys>(
        ptx::shared_address(keys) + zero, ptx::shared_address(queries) + zero, scores_);
    ptx::wgmma_commit();
  }

  // sums (64, columns) += packed (64, q_tile) right (q_tile, columns). One group.
  __device__ __forceinline__ void issue_sums(const unsigned char* right) {
    cuda::sm90::gemm_rs<kConfig.fp16, kConfig.columns>(
        packed_, tile::columns_descriptor(ptx::shared_address(right), Block::kPanelBytes), sums_, 0,
        kConfig.q_tile / cuda::sm90::kMmaK, true, [](int) {});
    ptx::wgmma_commit();
  }

  // dq (64, 64) = dS K, of the keys of both blocks and the warpgroup's 64 columns. One group.
  __device__ __forceinline__ void issue_dq(float (&dq)[kBlockRegisters]) const {
    const int panel = rank_ * KernelConfig::kConsumers + warpgroup_;
    cuda::sm90::gemm_tt<kConfig.fp16, kKeys>(
        ptx::shared_address(shared_.gradients),
        ptx::shared_address(shared_.k) + panel * Block::kPanelBytes, dq);
    cuda::sm90::gemm_tt<kConfig.fp16, kKeys>(
        ptx::shared_address(shared_.peer_gradients),
        ptx::shared_address(shared_.peer_k) + warpgroup_ * Block::kPanelBytes, dq, true);
    ptx::wgmma_commit();
  }

  // Releases the operands of dQ of a tile, which has been computed, and hands it to the reducer
  // (reducer.cuh).
  __device__ __forceinline__ void finish_dq(std::uint32_t tile,
                                            const float (&dq)[kBlockRegisters]) {
    release_both(shared_.gradients_empty);
    cuda::sm90::wait_empty(shared_.dq_barriers[warpgroup_], phase_of(tile));
    float* const to = shared_.dq[warpgroup_] + threadIdx.x % 128 * 4;
#pragma unroll
    for (int i = 0; i < kBlockRegisters / 4; ++i) {
      *reinterpret_cast<float4*>(to + i * kSumsStep) =
          make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    }
    ptx::fence_proxy_async();
    __syncwarp();
    cuda::sm90::release(shared_.dq_barriers[warpgroup_].full[0]);
  }

  // ---- the end of the block ----

  // Waits until dQ of all tiles has left its memory.
  __device__ __forceinline__ void wait_for_dq(std::uint32_t tiles) const {
    for (int warpgroup = 0; tiles > 0 && warpgroup < KernelConfig::kConsumers; ++warpgroup)
      cuda::sm90::wait_empty(shared_.dq_barriers[warpgroup], phase_of(tiles));
  }

  // Stores dK or dV by way of the memory of dQ.
  __device__ __forceinline__ void store_sums(const problem::View& view, std::int64_t columns,
                                             float scale, bool wide) const {
    if (!view.present()) return;
    const Problem& problem = parameters_.problem;
    const KeyTile& tile = shared_.tile;
    const std::int64_t batch = problem.k_packed ? 0 : tile.sequence.batch;
    const std::int32_t first = tile.first + rank_ * kKeys;
    // Keys of a dense tensor after the sequence's end (seqused_k) have gradients of 0.
    const std::int32_t length =
        static_cast<std::int32_t>(problem.k_packed ? tile.sequence.k_len : problem.k_rows);
    const std::int64_t row = tile.sequence.k_start + first;
    StagedPanel* const staged = reinterpret_cast<StagedPanel*>(shared_.dq[warpgroup_]);
    const Destination to = {view, view.offset(batch, tile.kv_head, row),
                            math::min(length - first, kKeys), static_cast<std::int32_t>(columns),
                            scale};
#pragma unroll
    for (int panel = 0; panel < Block::kPanels; ++panel) {
      store_panel<kConfig.fp16>(to, Base::warp_row(), panel * tile::kPanelColumns, wide,
                                staged[threadIdx.x % 128 / 32], sums_ + 32 * panel);
    }
  }

  std::uint32_t lanes_block_;          // the shared memory of block (lane % 2), for the cluster
  int rank_;                           // of the block
  int warpgroup_;                      // among the consumers
  float scores_[kScores];              // S^T or dP^T, then P or dS
  std::uint32_t packed_[kScores / 2];  // P^T or dS^T in 16 bits
  float sums_[kGradients];             // dV or dK
};

}  // namespace tilewise::cuda::backward::sm90::pair
