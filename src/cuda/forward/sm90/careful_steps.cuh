// The careful passes of a block (glossary.md): the same arithmetic as in the fast steps, with the
// same bits, for data that the fast steps cannot take or for which they take long. They compute the
// query tiles that the fast pass could not compute, and those that it has left (passes.cuh).
//
// Three things differ. Every step looks at the maxima, so that rows that rise are rescaled and not
// recomputed. Scores of huge rows are taken relative to their maximum (tile/careful_softmax.cuh).
// And in key tiles of which a row does not see everything, elements of V that are not finite count
// as zero in the product, since 0 * NaN is NaN; the rows that see one get it afterwards.
#pragma once

#include "cuda/forward/sm90/consumer.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/tile/non_finite.cuh"

namespace tilewise::cuda::sm90 {

// Says whether a row of a query tile does not see a key of a key tile that others may see.
template <KernelConfig kConfig>
__device__ __forceinline__ bool cuts_key_tile(const WorkTile& tile, std::int32_t key) {
  const std::int32_t begin = key * kConfig.k_tile;
  const std::int32_t end = math::min(begin + kConfig.k_tile, tile.band.key_end);
  const std::int32_t last = math::min(tile.row + kConfig.q_tile, tile.q_len) - 1;
  return !tile.band.full(tile.row, last, begin, end);
}

// All query tiles of a careful pass, one after the other.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::run_carefully() {
  Fragments f;
  while (load_work_tile()) {
    f.states.clear();
    accumulates_ = false;
#pragma unroll 1
    for (;;) {
      careful_step(f);
      if (key_ == last_key_) break;
      key_ = next_key(key_);
    }
    if constexpr (kConfig.fused_edges) {
      if (fuses_edges_) careful_fused_edges(f);
    }
    ++slot_;
    finalise(*tile_, f.states, shift_of(slot_ - 1));
    write_out(*tile_, f.out);
  }
}

// As exact_max_step(), with nothing that overlaps within the warpgroup: other warpgroups compute
// meanwhile.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::careful_step(Fragments& f) {
  k_.wait();
  issue_qk(f.scores);                        // S = Q K^T
  const MaskBits mask = early_mask<true>();  //   overlaps the product
  ptx::wgmma_wait<0>();
  accept_scores(f.scores);
  release_k();
  apply_score_mod_and_mask(mask, f.scores);
  const tile::Anchors anchors = update_max_carefully(f);  // m
  tile::rescale(f.out, anchors.factor);
  const tile::RowSums sums = exp2_scores(anchors, f);  // P
  tile::add_sums(sums, anchors, f.states);             // l
  tile::pack_probs<kConfig.fp16>(f.scores, f.probs);
  wait_v();
  careful_pv(key_, 0, f);  // O += P V
}

// By which, in log 2, the probs of the tile in a slot are smaller.
template <KernelConfig kConfig>
__device__ __forceinline__ float Consumer<kConfig>::shift_of(std::uint32_t slot) const {
  return shared_.careful.shifted[slot % kTileSlots] ? kShift : 0.0f;
}

// O += P V, from a step of the product on, once V is there.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::careful_pv(std::int32_t v_key, int begin,
                                                              Fragments& f) {
  zero_non_finite_v(v_key);
  gemm_rs<kConfig.fp16, kConfig.value_dim>(f.probs, v_descriptor(), f.out, begin, kPvSteps,
                                           accumulates_, [](int) {});
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::fence_operand(f.out);
  ptx::fence_operand(f.probs);
  add_non_finite_v(v_key, f.out);
  accumulates_ = true;
  v_.release();
}

// The maxima of a tile of scores, which are then ready for the exponentials.
template <KernelConfig kConfig>
__device__ __forceinline__ tile::Anchors Consumer<kConfig>::update_max_carefully(
    Fragments& f) const {
  tile::Anchors anchors = tile::update_max_carefully<kConfig.lazy_max, kConfig.fp16>(
      tile::row_max_of(f.scores), f.states, parameters_.scale_log2);
  tile::rebase_scores(f.scores, f.states, shift_of(slot_), anchors);
  return anchors;
}

// Before the product with a stage of V: in a cut key tile, what is not finite becomes zero, and its
// key is marked. A warpgroup that comes later finds zeros and the mark.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::zero_non_finite_v(std::int32_t key) const {
  if (!cuts_key_tile<kConfig>(*tile_, key)) return;
  const int stage = v_.state().stage;
  uint4* const chunks = reinterpret_cast<uint4*>(shared_.v[stage]);
  constexpr int kRowChunks = tile::kPanelRowBytes / tile::kChunkBytes;
#pragma unroll 1
  for (int i = static_cast<int>(ptx::opaque(threadIdx.x)) % 128;
       i < kConfig.v_bytes() / tile::kChunkBytes; i += 128) {
    uint4 chunk = chunks[i];
    if (!tile::zero_non_finite<kConfig.fp16>(chunk)) continue;
    const int row = i / kRowChunks % kConfig.k_tile;
    atomicOr(&shared_.careful.non_finite_keys[stage][row / 32], 1u << row % 32);
    __threadfence_block();  // the mark comes before the zeros
    chunks[i] = chunk;
  }
  ptx::fence_proxy_async();
  ptx::named_barrier_sync(barrier_of(NamedBarrier::kZeroV, warpgroup_), 128);
}

// After that product: adds what counted as zero to the rows that see it.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::add_non_finite_v(std::int32_t key,
                                                                    float (&out)[kOut]) const {
  const WorkTile& tile = *tile_;
  if (!cuts_key_tile<kConfig>(tile, key)) return;
  const problem::View& view = parameters_.problem.v;
  const int thread = static_cast<int>(ptx::opaque(threadIdx.x)) % 128;
  const std::int32_t row =
      tile.row + warpgroup_ * tile::kRows + thread / 32 * tile::kWarpRows + thread % 32 / 4;
  const std::int64_t batch = parameters_.problem.k_packed ? 0 : tile.batch;
  tile::NonFiniteSums<kOut> sums;
  bool any = false;
#pragma unroll 1
  for (int word = 0; word < kConfig.k_tile / 32; ++word) {
#pragma unroll 1
    for (std::uint32_t left = shared_.careful.non_finite_keys[v_.state().stage][word]; left != 0;
         left &= left - 1) {
      const std::int32_t j = key * kConfig.k_tile + word * 32 + __ffs(static_cast<int>(left)) - 1;
      bool sees[tile::kRowsPerLane];
#pragma unroll
      for (int which = 0; which < tile::kRowsPerLane; ++which) {
        sees[which] = j >= tile.band.begin(row + 8 * which) && j < tile.band.end(row + 8 * which);
      }
      const auto* const values = static_cast<const std::uint16_t*>(view.data) +
                                 view.offset(batch, tile.kv_head, tile.k_start + j);
      sums.template add<kConfig.fp16>(
          values, static_cast<std::int32_t>(parameters_.problem.value_dim), sees);
      any = true;
    }
  }
  if (any) sums.apply(out);
}

// A row has outgrown its lazy max: the block goes on carefully, where that costs less. By warps.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::request_careful_pass() const {
  if (threadIdx.x % 32 == 0) report_overflow(shared_.careful.reports);
}

}  // namespace tilewise::cuda::sm90
