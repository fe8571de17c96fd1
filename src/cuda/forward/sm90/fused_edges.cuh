// Fused window edges: both cut key tiles of a window as one step of a consumer.
//
// A window of as many keys as some key tiles have cuts the first and the last key tile of a query
// tile along one diagonal: together, a row sees as many of their keys as one tile has. By halves of
// 64 keys, the 64 rows of a warpgroup see
//
//                        first tile        last tile
//     first warpgroup    cut     whole     cut     -
//     second warpgroup   -       cut       whole   cut
//
// So one tile of exponentials serves two key tiles, and three halves of scores do instead of four:
// those of the tile of which a half is seen whole, and the cut half of the other one, whose visible
// scores take the place of the hidden ones. The probs are then divided between the V of both tiles:
// those of the first tile are multiplied here, those of the last tile by the step that follows,
// with zeros for half of the first warpgroup's.
#pragma once

#include "cuda/forward/sm90/consumer.cuh"
#include "cuda/forward/sm90/recompute_scores.cuh"
#include "cuda/tile/fused_edges.cuh"

namespace tilewise::cuda::sm90 {

// The last step of a query tile whose edges are fused, and the load of the next work tile, which
// overlaps a product; false: there is none. NOTE: K of the last tile arrives late; the first
// warpgroup needs it last.
template <KernelConfig kConfig>
template <bool kSecond>
__device__ __forceinline__ bool Consumer<kConfig>::fused_edges_step(Fragments& f) {
  constexpr int kHalf = kConfig.k_tile / 2;  // keys
  constexpr int kCutStep = kSecond ? kPvSteps / 2 : 0;
  constexpr std::uint32_t kHalfBytes = kHalf * tile::kPanelRowBytes;
  using Half = float[kHalf / 2];
  Half& cut = *reinterpret_cast<Half*>(f.scores + (kSecond ? kHalf / 2 : 0));
  Half& whole = *reinterpret_cast<Half*>(f.scores + (kSecond ? 0 : kHalf / 2));
  Half others;

  PipelineState<kConfig.k_stages> next = k_.state();
  next.advance();
  const std::uint32_t first_keys = k_address(k_.state());
  const std::uint32_t last_keys = k_address(next);
  const std::uint32_t keys = kSecond ? last_keys : first_keys;
  const std::uint32_t other_keys = kSecond ? first_keys + kHalfBytes : last_keys;
  const std::uint32_t rows = q_address();

  if constexpr (kSecond) k_.wait_next();
  order_barrier_wait();
  gemm_ss<kConfig.fp16, kConfig.k_tile, kConfig.head_dim, kConfig.k_tile>(rows, keys, f.scores);
  ptx::wgmma_commit();
  v_.wait();
  issue_pv(f);
  if constexpr (!kSecond) k_.wait_next();
  gemm_ss<kConfig.fp16, kHalf, kConfig.head_dim, kConfig.k_tile>(rows, other_keys, others);
  ptx::wgmma_commit();

  std::uint32_t hidden[tile::kRowsPerLane];
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) {
    const std::int32_t limit = key_limits_.begin[which] - (first_key_ - 1) * kConfig.k_tile;
    hidden[which] = tile::low_bits(tile::columns_before(limit, 0)) >> (kSecond ? kHalf / 4 : 0);
  }
  const tile::Anchors anchors = tile::anchors_of(f.states, parameters_.scale_log2);
  ptx::wgmma_wait<2>();
  accept_scores(f.scores);
  v_rows_ = kConfig.k_tile;
  tile::RowSums sums = tile::exp2_scores(whole, anchors, parameters_.scale_log2);
  split_basic_block();
  ptx::wgmma_wait<1>();
  release_v(f.out);
  ptx::wgmma_wait<0>();
  ptx::fence_operand(others);
  tile::merge_tiles<!kSecond>(cut, others, hidden);
  sums = tile::sum(sums, tile::exp2_scores(cut, anchors, parameters_.scale_log2));
  if (tile::any_overflowed<kConfig.fp16>(sums)) {
    const auto scores = [&] {
      recompute_scores<kConfig, kConfig.k_tile>(rows, keys, f.scores);
      recompute_scores<kConfig, kHalf>(rows, other_keys, others);
      tile::merge_tiles<!kSecond>(cut, others, hidden);
    };
    recompute_with_new_max(sums, f, scores, [&](const tile::Anchors& of) {
      return tile::sum(tile::exp2_scores(whole, of, parameters_.scale_log2),
                       tile::exp2_scores(cut, of, parameters_.scale_log2));
    });
  }
  release_k();
  release_k();

  std::uint32_t both[kHalf / 4];
  std::uint32_t first[kScores / 2];  // of the second warpgroup, the cut half alone
  tile::pack_probs<kConfig.fp16>(cut, both);
  tile::probs_of_first(both, hidden, first + 4 * kCutStep);
  std::uint32_t* const whole_probs = kSecond ? f.probs : first + kScores / 4;
#pragma unroll
  for (int i = 0; i < kHalf / 4; ++i)
    whole_probs[i] = ptx::pack<kConfig.fp16>(whole[2 * i], whole[2 * i + 1]);
  v_.wait();
  gemm_rs<kConfig.fp16, kConfig.value_dim>(first, v_descriptor(), f.out, kCutStep, kPvSteps,
                                           accumulates_, [](int) {});
  ptx::wgmma_commit();
  tile::probs_of_last(both, hidden, f.probs + 4 * kCutStep);
  if constexpr (!kSecond) {
#pragma unroll
    for (int i = kScores / 4; i < kScores / 2; ++i) f.probs[i] = 0;
  }
  tile::add_sums(sums, anchors, f.states);
  ++slot_;
  const bool more = load_work_tile();
  k_.wait();
  wait_pv(f.out);
  return more;
}

// The same in a careful pass (careful_steps.cuh), one product after the other. The halves that a
// warpgroup does not see are computed as well, and hidden.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::careful_fused_edges(Fragments& f) {
  constexpr int kHalf = kConfig.k_tile / 2;  // keys
  using Half = float[kHalf / 2];
  const bool second = warpgroup_ != 0;
  PipelineState<kConfig.k_stages> next = k_.state();
  next.advance();
  k_.wait();
  k_.wait_next();
  const std::uint32_t keys = k_address(second ? next : k_.state());
  const std::uint32_t other_keys =
      second ? k_address(k_.state()) + kHalf * tile::kPanelRowBytes : k_address(next);
  Half others;
  gemm_ss<kConfig.fp16, kConfig.k_tile, kConfig.head_dim, kConfig.k_tile>(q_address(), keys,
                                                                          f.scores);
  gemm_ss<kConfig.fp16, kHalf, kConfig.head_dim, kConfig.k_tile>(q_address(), other_keys, others);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  accept_scores(f.scores);
  ptx::fence_operand(others);
  release_k();
  release_k();
  v_rows_ = kConfig.k_tile;
  second ? careful_fused_probs<true>(others, f) : careful_fused_probs<false>(others, f);
}

template <KernelConfig kConfig>
template <bool kSecond>
__device__ __forceinline__ void Consumer<kConfig>::careful_fused_probs(
    float (&others)[kConfig.k_tile / 4], Fragments& f) {
  constexpr int kHalf = kConfig.k_tile / 2;  // keys
  constexpr int kCutStep = kSecond ? kPvSteps / 2 : 0;
  constexpr int kWholeStep = kSecond ? 0 : kPvSteps / 2;
  using Half = float[kHalf / 2];
  Half& cut = *reinterpret_cast<Half*>(f.scores + (kSecond ? kHalf / 2 : 0));
  Half& whole = *reinterpret_cast<Half*>(f.scores + (kSecond ? 0 : kHalf / 2));
  std::uint32_t hidden[tile::kRowsPerLane];
  const KeyLimits limits = find_key_limits();
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) {
    const std::int32_t limit = limits.begin[which] - (first_key_ - 1) * kConfig.k_tile;
    hidden[which] = tile::low_bits(tile::columns_before(limit, 0)) >> (kSecond ? kHalf / 4 : 0);
  }
  tile::merge_tiles<!kSecond>(cut, others, hidden);
  const tile::Anchors anchors = update_max_carefully(f);
  tile::rescale(f.out, anchors.factor);
  const tile::RowSums sums = tile::sum(tile::exp2_scores(whole, anchors, parameters_.scale_log2),
                                       tile::exp2_scores(cut, anchors, parameters_.scale_log2));
  tile::add_sums(sums, anchors, f.states);

  std::uint32_t both[kHalf / 4];
  std::uint32_t whole_probs[kHalf / 4];
  tile::pack_probs<kConfig.fp16>(cut, both);
  tile::pack_probs<kConfig.fp16>(whole, whole_probs);
#pragma unroll
  for (int i = 0; i < kHalf / 4; ++i) f.probs[4 * kWholeStep + i] = kSecond ? 0 : whole_probs[i];
  tile::probs_of_first(both, hidden, f.probs + 4 * kCutStep);
  v_.wait();
  careful_pv(first_key_ - 1, kCutStep, f);
#pragma unroll
  for (int i = 0; i < kHalf / 4; ++i) f.probs[4 * kWholeStep + i] = kSecond ? whole_probs[i] : 0;
  tile::probs_of_last(both, hidden, f.probs + 4 * kCutStep);
  v_.wait();
  careful_pv(end_key_, 0, f);
}

}  // namespace tilewise::cuda::sm90
