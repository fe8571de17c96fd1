// A consumer's way through the query tiles, the stages of K and V, and the order of warpgroups.
#pragma once

#include "cuda/forward/sm90/consumer.cuh"
#include "cuda/ptx/named_barrier.cuh"

namespace tilewise::cuda::sm90 {

// Waits for the Q of the next query tile, and with it for its description; false: there is none.
template <KernelConfig kConfig>
__device__ __forceinline__ bool Consumer<kConfig>::load_work_tile() {
  wait_full(shared_.barriers.q[warpgroup_], state_after<kConfig.q_stages>(slot_));
  tile_ = &shared_.tiles[slot_ % kTileSlots];
  bool more = true;
  if constexpr (kConfig.fused_edges) {
    more = uniform(tile_->index) >= 0;  // a branch would lie among products of the tile before
  } else if (uniform(tile_->index) < 0) {
    return false;
  }
  first_key_ = last_key_ = uniform(tile_->first_key);
  end_key_ = uniform(tile_->end_key);
  last_v_rows_ = uniform(tile_->v_rows);
  if constexpr (kConfig.block_mask) return true;
  key_ = end_key_ - 1;
  full_begin_ = uniform(tile_->full.begin[warpgroup_]);
  full_end_ = uniform(tile_->full.end[warpgroup_]);
  // A row that sees any key has seen one by the last tile that all rows see whole.
  first_key_from_ = full_end_ - 1;
  if constexpr (kConfig.starts_full()) {
    key_ = uniform(tile_->start_key);
    if (key_ + 1 < end_key_) {
      last_key_ = key_ + 1;
      first_key_from_ = end_key_;
    }
  }
  if constexpr (kConfig.skips_half())
    half_hidden_ = uniform(tile_->half_hidden[warpgroup_] ? 1 : 0) != 0;
  if constexpr (kConfig.fused_edges)
    fuses_edges_ = uniform(tile_->keys == KeyVisibility::kFusedEdges ? 1 : 0) != 0;
  return more;
}

template <KernelConfig kConfig>
__device__ __forceinline__ std::int32_t Consumer<kConfig>::next_key(std::int32_t key) const {
  if constexpr (kConfig.block_mask) return key;  // take_key_tile() says which comes next
  return kConfig.starts_full() ? tile::next_key_tile(key, first_key_, end_key_) : key - 1;
}

// The key tile whose K has arrived, where key tiles are listed.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::take_key_tile() {
  if constexpr (kConfig.block_mask) {
    const tile::KeyTile& own = shared_.key_tiles.of_stage[k_.state().stage];
    const std::int32_t key = uniform(own.key);
    key_ = key / 2;
    last_key_ = key % 2 != 0 ? key_ : -1;
    bits_ = uniform(own.bits);
  }
}

// The warpgroup's rows of Q in a stage, and those of the query tile.
template <KernelConfig kConfig>
__device__ __forceinline__ std::uint32_t Consumer<kConfig>::q_stage_address(
    const PipelineState<kConfig.q_stages>& state) const {
  return ptx::shared_address(shared_.q) + state.offset(kConfig.q_bytes()) +
         static_cast<std::uint32_t>(warpgroup_ * tile::kRows * kConfig.row_bytes(kConfig.head_dim));
}
template <KernelConfig kConfig>
__device__ __forceinline__ std::uint32_t Consumer<kConfig>::q_address() const {
  return q_stage_address(state_after<kConfig.q_stages>(slot_));
}
template <KernelConfig kConfig>
__device__ __forceinline__ std::uint32_t Consumer<kConfig>::k_address(
    const PipelineState<kConfig.k_stages>& state) const {
  return ptx::shared_address(shared_.k) + state.offset(kConfig.k_bytes());
}
// V of the scores that came last.
template <KernelConfig kConfig>
__device__ __forceinline__ std::uint64_t Consumer<kConfig>::v_descriptor() const {
  const std::uint32_t v = ptx::shared_address(shared_.v) + v_.state().offset(kConfig.v_bytes());
  return tile::columns_descriptor(v, kConfig.k_tile * tile::kPanelRowBytes);
}

// After the wait for QK: the scores may be read.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::accept_scores(float (&scores)[kScores]) {
  ptx::fence_operand(scores);
  v_rows_ = key_ == end_key_ - 1 ? last_v_rows_ : kConfig.k_tile;
}

// The scores are computed: K is free, and after the last key tile Q is, unless out is staged in its
// place.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::release_k() {
  k_.release();
  if (!kConfig.stages_out_in_q() && key_ == last_key_)
    release(shared_.barriers.q[warpgroup_].empty[state_after<kConfig.q_stages>(slot_).stage]);
}

// Waits for PV: out may be read, the registers of probs may be written, and V is free.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::wait_pv(float (&out)[kOut]) {
  ptx::wgmma_wait<0>();
  release_v(out);
}
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::release_v(float (&out)[kOut]) {
  ptx::fence_operand(out);
  v_.release();
}

// Waits for the V of the scores that came last. Rows after the sequence's end, which belong to
// another one, become zero: their probs are 0, but 0 * NaN is NaN. Every warpgroup writes the same
// zeros.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::wait_v() const {
  v_.wait();
  if (!has_foreign_rows()) return;
  unsigned char* const v = shared_.v[v_.state().stage];
  constexpr int kRowChunks = tile::kPanelRowBytes / tile::kChunkBytes;
  for (int chunk = threadIdx.x % 128; chunk < kConfig.v_bytes() / tile::kChunkBytes; chunk += 128) {
    if (chunk / kRowChunks % kConfig.k_tile < v_rows_) continue;
    reinterpret_cast<uint4*>(v)[chunk] = make_uint4(0, 0, 0, 0);
  }
  ptx::fence_proxy_async();
  ptx::named_barrier_sync(barrier_of(NamedBarrier::kZeroV, warpgroup_), 128);
}
template <KernelConfig kConfig>
__device__ __forceinline__ bool Consumer<kConfig>::has_foreign_rows() const {
  return v_rows_ < kConfig.k_tile;
}

// Splits the basic block for ptxas; the barrier is always complete. NOTE: in one block with maxima
// or exponentials, ptxas 13.0 waits for the products first, which then overlap nothing (D 128, S
// 8192: 609 TFLOP/s, 650 with the split). A wait for K splits the block as well.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::split_basic_block() const {
  ptx::mbarrier_wait(ptx::shared_address(&shared_.barriers.always_complete), 1);
}

// The order barrier: warpgroups issue their products in turns, so that one computes exponentials
// while the tensor cores work for another.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::order_barrier_wait() const {
  ptx::named_barrier_sync(barrier_of(NamedBarrier::kOrder, warpgroup_), 256);
}
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::order_barrier_arrive() const {
  const int next = (warpgroup_ + 1) % kConfig.consumers();
  ptx::named_barrier_arrive(barrier_of(NamedBarrier::kOrder, next), 256);
}

}  // namespace tilewise::cuda::sm90
