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
// scores' place the seen ones of the other come. Their weights are then parted between the values
// of both: those of the first tile are multiplied here, those of the last one by the step behind,
// half of the first warpgroup's as zeros.
#pragma once

#include "cuda/sm90/consumer.cuh"
#include "cuda/tile/fold.cuh"

namespace tilewise::cuda::sm90 {

// The last step of a tile of queries that folds, and the opening of the next one, beside a product;
// false: there is none. NOTE: K of the last tile has come late; the first warpgroup needs it last.
template <KernelConfig kConfig>
template <bool kSecond>
__device__ __forceinline__ bool Consumer<kConfig>::fold(Fragments& f) {
  constexpr int kHalf = kConfig.k_tile / 2;  // keys
  constexpr int kCutStep = kSecond ? kCount / 2 : 0;
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
  take_turn();
  multiply_rows<kConfig.k_tile>(rows, keys, f.scores);
  wait_full(shared_.barriers.v_full, v_place());
  multiply_values<true, false>(v_descriptor(), f.weights, f.out);
  if constexpr (!kSecond) wait_full(shared_.barriers.k_full, behind);
  multiply_rows<kHalf>(rows, other_keys, others);

  std::uint32_t hidden[tile::kRowsPerLane];
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) {
    const std::int32_t limit = limits_.begin[which] - (first_key_ - 1) * kConfig.k_tile;
    hidden[which] = tile::low_bits(tile::columns_before(limit, 0)) >> (kSecond ? kHalf / 4 : 0);
  }
  const tile::Anchors anchors = tile::anchors_of(f.states, parameters_.unit);
  ptx::wait_products<2>();
  take_scores(f.scores);
  used_ = kConfig.k_tile;
  tile::Totals totals = tile::weigh(whole, anchors, parameters_.unit);
  end_block();
  ptx::wait_products<1>();
  free_values(f.out);
  ptx::wait_products<0>();
  ptx::settle(others);
  tile::fold<!kSecond>(cut, others, hidden);
  totals = tile::sum(totals, tile::weigh(cut, anchors, parameters_.unit));
  if (tile::have_grown<kConfig.fp16>(totals)) {
    weigh_again(totals, f, [&] {
      multiply_again<kConfig, kConfig.k_tile>(rows, keys, f.scores);
      multiply_again<kConfig, kHalf>(rows, other_keys, others);
      tile::fold<!kSecond>(cut, others, hidden);
    });
  }
  free_keys();
  free_keys();

  std::uint32_t both[kHalf / 4];
  std::uint32_t first[kScores / 2];  // of the second warpgroup, the cut half alone
  tile::pack<kConfig.fp16>(cut, both);
  tile::take_first(both, hidden, first + 4 * kCutStep);
  std::uint32_t* const whole_weights = kSecond ? f.weights : first + kScores / 4;
#pragma unroll
  for (int i = 0; i < kHalf / 4; ++i)
    whole_weights[i] = ptx::pack<kConfig.fp16>(whole[2 * i], whole[2 * i + 1]);
  wait_full(shared_.barriers.v_full, v_place());
  multiply_values<false>(v_descriptor(), first, f.out, kCutStep, kCount);
  ptx::commit_products();
  tile::take_last(both, hidden, f.weights + 4 * kCutStep);
  if constexpr (!kSecond) {
#pragma unroll
    for (int i = kScores / 4; i < kScores / 2; ++i) f.weights[i] = 0;
  }
  tile::add(totals, anchors, f.states);
  ++slot_;
  const bool more = open();
  wait_next_keys<false>();
  take_values(f.out);
  return more;
}

}  // namespace tilewise::cuda::sm90
