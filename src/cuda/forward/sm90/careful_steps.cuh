// The careful passes of a block (glossary.md): the same arithmetic as in the fast steps, with the
// same bits, for data that the fast steps cannot take or for which they take long. They compute the
// query tiles that the fast pass could not compute, and those that it has left (passes.cuh).
//
// Three things differ. Every step looks at the maxima, so that rows that rise are rescaled and not
// recomputed. Scores of huge rows are taken relative to their maximum (tile/careful_softmax.cuh).
// And key tiles that an edge cuts may hold masked values that are not finite
// (non_finite_values.cuh).
#pragma once

#include "cuda/forward/sm90/consumer.cuh"
#include "cuda/forward/sm90/non_finite_values.cuh"

namespace tilewise::cuda::sm90 {

// The number of the consumer warpgroup, which the compiler does not keep.
__device__ __forceinline__ int consumer_number() {
  return uniform(static_cast<int>(ptx::opaque(threadIdx.x)) / 128 - 1);
}

// All query tiles of a careful pass, one after the other.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::run_carefully() {
  Fragments f;
  while (load_work_tile()) {
    if (threadIdx.x == 128) tile::count_slow_path(tile::SlowPath::kCarefulTile);
    warpgroup_ = consumer_number();  // what follows from it takes no registers across tiles
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
  take_key_tile();
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
  if (cuts_keys(v_key)) zero_non_finite_v();
  gemm_rs<kConfig.fp16, kConfig.value_dim>(f.probs, v_descriptor(), f.out, begin, kPvSteps,
                                           accumulates_, [](int) {});
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::fence_operand(f.out);
  ptx::fence_operand(f.probs);
  if (cuts_keys(v_key)) add_non_finite_v(v_key, f.out);
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

// A row has outgrown its lazy max: the block goes on carefully, where that costs less. By warps.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::request_careful_pass() const {
  if (threadIdx.x % 32 == 0) report_overflow(shared_.careful.reports);
}

}  // namespace tilewise::cuda::sm90
