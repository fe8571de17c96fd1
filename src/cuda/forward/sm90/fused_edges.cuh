// Both cut tiles of keys of a window as one step of a consumer.
//
// A window of as many keys as some tiles have cuts the first and the last tile of a tile of queries
// along the same diagonal: of both a row sees as many keys as one has. By halves of 64 keys, of
// what the 64 rows of a warpgroup see:
//
//                        first tile        last tile
//     first warpgroup    cut     whole     cut     -
//     second warpgroup   -       cut       whole   cut
//
// So there is one tile of exponentials for two of keys, and three halves of scores, not four: those
// of the tile of which a half is seen whole, and the cut half of the other one, in whose hidden
// scores' place the seen ones of the other come. Their probs are then parted between the values
// of both: those of the first tile are multiplied here, those of the last one by the step behind,
// half of the first warpgroup's as zeros.
#pragma once

#include "cuda/forward/sm90/consumer.cuh"
#include "cuda/tile/fused_edges.cuh"

namespace tilewise::cuda::sm90 {

// The last step of a tile of queries that folds, and the opening of the next one, beside a product;
// false: there is none. NOTE: K of the last tile has come late; the first warpgroup needs it last.
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

  Place<kConfig.k_stages> behind = k_;
  behind.advance();
  const std::uint32_t first_keys = k_address();
  const std::uint32_t last_keys = ptx::shared_address(shared_.k) + behind.offset(kConfig.k_bytes());
  const std::uint32_t keys = kSecond ? last_keys : first_keys;
  const std::uint32_t other_keys = kSecond ? first_keys + kHalfBytes : last_keys;
  const std::uint32_t rows = q_address(q_place().offset(kConfig.q_bytes()));

  if constexpr (kSecond) wait_full(shared_.barriers.k_full, behind);
  order_barrier_wait();
  issue_qk_rows<kConfig.k_tile>(rows, keys, f.scores);
  wait_full(shared_.barriers.v_full, v_place());
  issue_pv<true, false>(v_descriptor(), f.probs, f.out);
  if constexpr (!kSecond) wait_full(shared_.barriers.k_full, behind);
  issue_qk_rows<kHalf>(rows, other_keys, others);

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
  tile::RowSums totals = tile::exp2_scores(whole, anchors, parameters_.scale_log2);
  split_basic_block();
  ptx::wgmma_wait<1>();
  release_v(f.out);
  ptx::wgmma_wait<0>();
  ptx::fence_operand(others);
  tile::merge_tiles<!kSecond>(cut, others, hidden);
  totals = tile::sum(totals, tile::exp2_scores(cut, anchors, parameters_.scale_log2));
  if (tile::any_overflowed<kConfig.fp16>(totals)) {
    recompute_with_new_max(totals, f, [&] {
      recompute_scores<kConfig, kConfig.k_tile>(rows, keys, f.scores);
      recompute_scores<kConfig, kHalf>(rows, other_keys, others);
      tile::merge_tiles<!kSecond>(cut, others, hidden);
    });
  }
  release_k();
  release_k();

  std::uint32_t both[kHalf / 4];
  std::uint32_t first[kScores / 2];  // of the second warpgroup, the cut half alone
  tile::pack_probs<kConfig.fp16>(cut, both);
  tile::probs_of_first(both, hidden, first + 4 * kCutStep);
  std::uint32_t* const whole_weights = kSecond ? f.probs : first + kScores / 4;
#pragma unroll
  for (int i = 0; i < kHalf / 4; ++i)
    whole_weights[i] = ptx::pack<kConfig.fp16>(whole[2 * i], whole[2 * i + 1]);
  wait_full(shared_.barriers.v_full, v_place());
  issue_pv<false>(v_descriptor(), first, f.out, kCutStep, kPvSteps);
  ptx::wgmma_commit();
  tile::probs_of_last(both, hidden, f.probs + 4 * kCutStep);
  if constexpr (!kSecond) {
#pragma unroll
    for (int i = kScores / 4; i < kScores / 2; ++i) f.probs[i] = 0;
  }
  tile::add_sums(totals, anchors, f.states);
  ++slot_;
  const bool more = open();
  wait_next_k<false>();
  wait_pv(f.out);
  return more;
}

}  // namespace tilewise::cuda::sm90
