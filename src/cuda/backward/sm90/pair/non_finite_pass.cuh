// The pass for non-finite values in a pair of blocks; sm90/non_finite_pass.cuh explains it. The
// second pass loads for both blocks again, so the blocks agree on it.
#pragma once

#include "cuda/backward/hidden_values.cuh"
#include "cuda/backward/sm90/non_finite_row.cuh"
#include "cuda/backward/sm90/pair/consumer.cuh"
#include "cuda/tile/slow_path.cuh"

namespace tilewise::cuda::backward::sm90::pair {

template <KernelConfig kConfig>
class NonFinitePass : public Consumer<kConfig> {
 public:
  using Base = Consumer<kConfig>;
  using Base::Base;

 protected:
  using Base::kFirstThread;
  using Base::kGradients;
  using Base::kScores;
  using Base::mask_;
  using Base::meet_consumers;
  using Base::own_share;
  using Base::parameters_;
  using Base::shared_;
  using Base::sums_;
  using typename Base::Block;
  using typename Base::Tiles;

  __device__ __forceinline__ void zero_non_finite_keys() const {
    const ThreadShare threads = own_share();
    if (zero_tile<kConfig.fp16, kKeys>(shared_.k, Block::kPanels, shared_.non_finite_key, threads))
      shared_.non_finite_keys = 1;
    zero_tile<kConfig.fp16, kKeys>(shared_.peer_k, Block::kOwnPanels, nullptr, threads);
    ptx::fence_proxy_async();
    meet_consumers();
  }

  // Returns whether the blocks compute again. All threads of both blocks meet here, in
  // cluster_sync().
  __device__ __forceinline__ bool ends_non_finite() const {
    float total = 0;  // 0 * x is NaN for what is not finite, and stays in the sum
#pragma unroll
    for (int r = 0; r < kGradients; ++r) total += 0 * sums_[r];
    if (!(total == 0)) shared_.found_non_finite = 1;
    meet_consumers();
    if (cuda::sm90::uniform(shared_.found_non_finite) != 0 &&
        (shared_.non_finite_keys != 0 || hides_non_finite())) {
      for (int rank = 0; rank < kBlocks; ++rank)
        ptx::st_cluster(ptx::cluster_address(ptx::shared_address(&shared_.second_pass), rank), 1);
    }
    ptx::cluster_sync();
    const bool again = cuda::sm90::uniform(shared_.second_pass) != 0;
    if (again && threadIdx.x == kFirstThread) tile::count_slow_path(tile::SlowPath::kNonFinitePass);
    return again;
  }

  // Calls step(head, q_tile, number) for each tile of the second pass.
  template <class Step>
  __device__ __forceinline__ void visit_again(const Tiles& tiles, const Step& step) const {
    const std::int32_t group = static_cast<std::int32_t>(parameters_.problem.group);
    std::uint32_t number = tiles.count;
#pragma unroll 1
    for (std::int32_t i = 0; i < group; ++i) {
#pragma unroll 1
      for (std::int32_t q_tile = tiles.begin; q_tile < tiles.end; ++q_tile)
        step(shared_.tile.kv_head * group + i, q_tile, number++);
    }
  }

  // A score of -inf masks, even if LSE is NaN. The mask bits of such scores lie in the memory of
  // dQ, which this pass does not compute. The lane that has the scores stores those of both.
  using HiddenBits = std::uint32_t[tile::kRowsPerLane];
  __device__ __forceinline__ std::uint32_t& hidden_bits(int which) const {
    return reinterpret_cast<std::uint32_t*>(
        shared_.dq[0])[which * 128 + static_cast<int>(threadIdx.x % 128)];
  }
  __device__ __forceinline__ void find_hidden(const float (&scores)[kScores],
                                              HiddenBits& bits) const {
    const float hidden = parameters_.problem.scale < 0 ? math::Limits<float>::kInfinity
                                                       : -math::Limits<float>::kInfinity;
    bits[0] = bits[1] = 0;
#pragma unroll
    for (int r = 0; r < kScores; ++r) {
      if (scores[r] == hidden) bits[tile::register_row(r)] |= 1u << (r / 4 * 2 + r % 2);
    }
    hidden_bits(0) = bits[0];
    hidden_bits(1) = bits[1];
  }

  // Replaces non-finite elements of dO by zero and flags their rows, before use_flags(); then does
  // the same for Q. Both warpgroups have read them.
  template <class UseFlags>
  __device__ __forceinline__ void zero_queries(int stage, const UseFlags& use_flags) const {
    const ThreadShare threads = own_share();
    for (int i = threads.index; i < kConfig.q_tile; i += threads.count)
      shared_.non_finite_query[i] = 0;
    meet_consumers();
    zero_tile<kConfig.fp16, kConfig.q_tile>(shared_.dout, Block::kPanels, shared_.non_finite_query,
                                            threads);
    meet_consumers();
    use_flags();
    zero_tile<kConfig.fp16, kConfig.q_tile>(shared_.q[stage], Block::kPanels, nullptr, threads);
    ptx::fence_proxy_async();
    meet_consumers();
  }

  // Adds P^T dO to dV for the non-finite elements of dO. P^T lies in shared memory.
  __device__ __forceinline__ void add_non_finite_rows(std::int32_t head, std::int32_t q_tile) {
#pragma unroll 1
    for (int row = 0; row < kConfig.q_tile; ++row) {
      if (shared_.non_finite_query[row] == 0) continue;
      add_non_finite_row<kConfig.fp16>(
          dout_row(parameters_.problem, shared_.tile.sequence, head, q_tile * kConfig.q_tile + row),
          shared_.gradients, Base::warp_row(), row, sums_);
    }
  }

 private:
  // Whether this thread finds a value that is not finite in a tile of queries that an edge cuts, or
  // an infinity in another.
  __device__ __forceinline__ bool hides_non_finite() const {
    const Problem& problem = parameters_.problem;
    const tile::Range tiles = mask_.tiles();
    const tile::Range full = mask_.full_tiles();
    const std::int32_t group = static_cast<std::int32_t>(problem.group);
    bool found = false;
#pragma unroll 1
    for (std::int32_t i = 0; i < group; ++i) {
#pragma unroll 1
      for (std::int32_t q_tile = tiles.begin; q_tile < tiles.end; ++q_tile) {
        found |= hide_non_finite<kConfig.fp16>(
            problem, shared_.tile.sequence, shared_.tile.kv_head * group + i,
            {q_tile * kConfig.q_tile, (q_tile + 1) * kConfig.q_tile},
            q_tile >= full.begin && q_tile < full.end, own_share());
      }
    }
    return found;
  }
};

}  // namespace tilewise::cuda::backward::sm90::pair
