// The producer: a thread that loads K and V once, and then Q, dO and their statistics by tiles.
#pragma once

#include "cuda/backward/query_mask.cuh"
#include "cuda/backward/query_tiles.cuh"
#include "cuda/backward/sm90/listed_query_tiles.cuh"
#include "cuda/backward/sm90/shared.cuh"
#include "cuda/sm90/tma_tile.cuh"

namespace tilewise::cuda::backward::sm90 {

template <KernelConfig kConfig>
class Producer {
 public:
  using Mask = QueryMask<kConfig.q_tile, KernelConfig::kKTile>;

  __device__ Producer(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters), shared_(shared), mask_(parameters, shared.tile, shared.mask) {}

  // One thread.
  __device__ __forceinline__ void load_keys() const {
    const KeyTile& tile = shared_.tile;
    const std::int32_t row = static_cast<std::int32_t>(tile.sequence.k_start) + tile.first;
    ptx::mbarrier_arrive_expect_tx(ptx::shared_address(&shared_.keys_full), 2 * kConfig.k_bytes());
    load<KernelConfig::kKTile>(shared_.k, parameters_.k, row, tile.kv_head, shared_.keys_full);
    load<KernelConfig::kKTile>(shared_.v, parameters_.v, row, tile.kv_head, shared_.keys_full);
  }

  // One thread: loads the queries, and once more if the consumers need a second pass.
  __device__ __forceinline__ void run() {
    load_queries();
    ptx::mbarrier_wait(ptx::shared_address(&shared_.pass_end), 0);
    if (shared_.found_non_finite != 0) load_queries();
  }

 private:
  // The queries that see the keys, of all query heads of the group.
  __device__ __forceinline__ void load_queries() {
    if constexpr (kConfig.block_mask) return load_listed_queries();
    const tile::Range tiles = mask_.tiles();
    const std::int32_t group = static_cast<std::int32_t>(parameters_.problem.group);
    const std::int32_t first_head = shared_.tile.kv_head * group;
#pragma unroll 1
    for (std::int32_t head = first_head; head < first_head + group; ++head) {
      const std::int32_t batch = static_cast<std::int32_t>(shared_.tile.sequence.batch);
      const std::int64_t number = first_query_tile(parameters_, batch, head) + tiles.begin;
      const float* statistics = parameters_.statistics + number * 2 * kConfig.q_tile;
      std::int32_t row =
          static_cast<std::int32_t>(shared_.tile.sequence.q_start) + tiles.begin * kConfig.q_tile;
#pragma unroll 1
      for (std::int32_t left = tiles.end - tiles.begin; left > 0; --left) {
        cuda::sm90::wait_empty(shared_.q_barriers, state_);
        expect_query_tile(0);
        load_query_tile(head, row, statistics);
        row += kConfig.q_tile;
        statistics += 2 * kConfig.q_tile;
      }
    }
  }

  // The head is computed again where it is needed: the thread has few registers.
  __device__ __forceinline__ void load_listed_queries() {
#pragma unroll 1
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(parameters_.problem.group); ++i) {
      visit_listed(parameters_, shared_.tile, head_of_group(i),
                   [&](std::int32_t q_tile, std::int32_t bits) {
                     cuda::sm90::wait_empty(shared_.q_barriers, state_);
                     const std::int32_t head = head_of_group(i);
                     announce(head, q_tile, bits);
                     load_listed_tile(head, q_tile);
                   });
    }
  }
  __device__ __forceinline__ std::int32_t head_of_group(std::int32_t i) const {
    return shared_.tile.kv_head * static_cast<std::int32_t>(parameters_.problem.group) + i;
  }

  __device__ __forceinline__ void load_listed_tile(std::int32_t head, std::int32_t q_tile) {
    const Sequence& sequence = shared_.tile.sequence;
    const std::int64_t number =
        first_query_tile(parameters_, static_cast<std::int32_t>(sequence.batch), head) + q_tile;
    load_query_tile(head, static_cast<std::int32_t>(sequence.q_start) + q_tile * kConfig.q_tile,
                    parameters_.statistics + number * 2 * kConfig.q_tile);
  }

  // Announces the next tile of the list, and loads its mask bits. The consumers read both when the
  // barrier of Q completes.
  __device__ __forceinline__ void announce(std::int32_t head, std::int32_t q_tile,
                                           std::int32_t bits) {
    shared_.listed.order[state_.phase * kConfig.stages + state_.stage] = {q_tile, head};
    shared_.listed.bits_of[state_.stage] = bits;
    constexpr int kBytes = sizeof(shared_.listed.bits[0]);
    expect_query_tile(bits < 0 ? 0 : kBytes);
    if (bits < 0) return;
    ptx::bulk_load(ptx::shared_address(shared_.listed.bits[state_.stage]),
                   parameters_.block_mask.bits + std::int64_t{bits} * (kBytes / 4), kBytes,
                   q_full());
  }

  // Makes the barrier of a free stage expect Q, the statistics and `bytes` more.
  __device__ __forceinline__ void expect_query_tile(int bytes) const {
    ptx::mbarrier_arrive_expect_tx(q_full(),
                                   kConfig.q_bytes() + sizeof(shared_.statistics[0]) + bytes);
  }
  __device__ __forceinline__ std::uint32_t q_full() const {
    return ptx::shared_address(&shared_.q_barriers.full[state_.stage]);
  }

  __device__ __forceinline__ void load_query_tile(std::int32_t head, std::int32_t row,
                                                  const float* statistics) {
    load<kConfig.q_tile>(shared_.q[state_.stage], parameters_.q, row, head,
                         shared_.q_barriers.full[state_.stage]);
    ptx::bulk_load(ptx::shared_address(shared_.statistics[state_.stage]), statistics,
                   sizeof(shared_.statistics[0]), q_full());
    cuda::sm90::wait_empty(shared_.dout_barriers, state_);
    std::uint64_t& dout_full = shared_.dout_barriers.full[state_.stage];
    ptx::mbarrier_arrive_expect_tx(ptx::shared_address(&dout_full), kConfig.q_bytes());
    load<kConfig.q_tile>(shared_.dout[state_.stage], parameters_.dout, row, head, dout_full);
    state_.advance();
  }

  template <int kRows>
  __device__ __forceinline__ void load(unsigned char* to, const TensorMap& map, std::int32_t row,
                                       std::int32_t head, std::uint64_t& full) const {
    const std::int32_t batch = static_cast<std::int32_t>(shared_.tile.sequence.batch);
    cuda::sm90::tma_load_tile<kRows, kConfig.columns>(
        to, {&map.map, row, head * map.coords.head, batch * map.coords.batch}, full,
        ptx::L2Hint::kEvictLast);
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  Mask mask_;
  PipelineState<kConfig.stages> state_;
};

}  // namespace tilewise::cuda::backward::sm90
