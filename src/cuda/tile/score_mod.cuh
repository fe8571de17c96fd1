// The score mod on the scores of a lane: scale, softcap, bias, ALiBi and the boolean mask
// (math/score_rule.h). Which of them a problem has is known at run time. Each is a pass of its own
// over the scores, so that one that is absent costs one comparison.
#pragma once

#include <type_traits>

#include "cuda/ptx/address.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/pair_loads.h"
#include "cuda/tile/softcap.cuh"
#include "math/number.h"
#include "math/score_rule.h"
#include "problem/problem.h"

namespace tilewise::cuda::tile {

// Returns the ALiBi slope of a head; 0 without ALiBi.
__device__ __forceinline__ float slope_of(const problem::Problem& problem, std::int64_t batch,
                                          std::int64_t head) {
  if (!problem.alibi_slopes.present()) return 0;
  const std::int64_t offset = problem.alibi_slopes.offset(batch, head, 0);
  return static_cast<const float*>(problem.alibi_slopes.data)[offset];
}

// The numbers of a head of a sequence that the score mod needs.
struct Head {
  std::int64_t batch;  // the sequence's number
  std::int64_t head;
  std::int32_t diagonal;
  float slope;
};

__device__ __forceinline__ Head head_of(const problem::Problem& problem, std::int64_t batch,
                                        std::int64_t head, std::int32_t diagonal) {
  return {batch, head, diagonal, slope_of(problem, batch, head)};
}

__device__ __forceinline__ float read_bias(const problem::View& bias, std::int64_t offset) {
  if (bias.dtype == TILEWISE_FP32) return static_cast<const float*>(bias.data)[offset];
  if (bias.dtype == TILEWISE_BF16)
    return math::to_float(static_cast<const math::BFloat16*>(bias.data)[offset]);
  return math::to_float(static_cast<const math::Float16*>(bias.data)[offset]);
}

// A layout says where the scores of a lane lie. For register r, row() is which of the lane's rows,
// row_offset() how many rows below the first one, column() how many columns right of the first one,
// and bit() the mask bit of the column (mask_bits.h). This is the layout of a fragment
// (tile/fragment.h).
struct FragmentLayout {
  static constexpr int kRows = kRowsPerLane;
  TILEWISE_INLINE static constexpr int row(int r) { return register_row(r); }
  TILEWISE_INLINE static constexpr int row_offset(int r) { return 8 * register_row(r); }
  TILEWISE_INLINE static constexpr int column(int r) { return register_column(r); }
  TILEWISE_INLINE static constexpr int bit(int r) { return r / 4 * 2 + r % 2; }
};

// Applies scale, or scale and softcap, to products, kTogether at a time. ptxas interleaves the
// instructions of one basic block, but with many scores in it too many values stay in registers.
// NOTE: __builtin_expect names the likely branches and moves the others out of the way: on one
// H200, D 128, S 8192, softcap runs at 390 TFLOP/s, not 379, and ALiBi at 594, not 547.
template <class Cap, int kTogether, int kCount>
__device__ __forceinline__ void scale_products(const ScoreScaling& scaling,
                                               float (&scores)[kCount]) {
  static_assert(kCount % kTogether == 0);
  if (__builtin_expect(scaling.cap <= 0, 0)) {
#pragma unroll
    for (float& score : scores) score *= scaling.scale;
    return;
  }
  const bool is_short = Cap::kTwoForms && scaling.short_scale_log2 != 0;
#pragma unroll
  for (int first = 0; first < kCount; first += kTogether) {
    // opaque(): a branch for each run of kTogether scores, unless there is only one.
    const bool now_short =
        Cap::kTwoForms && (kTogether < kCount ? ptx::opaque(is_short ? 1u : 0u) != 0 : is_short);
    if (__builtin_expect(now_short, 1)) {
      const ShortSoftcap cap{scaling};
#pragma unroll
      for (int r = first; r < first + kTogether; ++r) scores[r] = cap(scores[r]);
    } else {
      const Cap cap{scaling};
#pragma unroll
      for (int r = first; r < first + kTogether; ++r) scores[r] = cap(scores[r]);
    }
  }
}

// distance: i + d - j for the lane's first row and first key
template <class Layout, int kCount>
__device__ __forceinline__ void add_alibi(float slope, std::int32_t distance,
                                          float (&scores)[kCount]) {
  if (slope == 0) return;
  const float first = static_cast<float>(distance);
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    const int further = Layout::row_offset(r) - Layout::column(r);
    scores[r] += math::alibi(slope, first + static_cast<float>(further));
  }
}

// Reads two adjacent numbers.
__device__ __forceinline__ float2 read_pair(const float* from) {
  return *reinterpret_cast<const float2*>(from);
}
template <class Half>
__device__ __forceinline__ float2 read_pair(const Half* from) {
  const std::uint32_t pair = *reinterpret_cast<const std::uint32_t*>(from);
  return {math::to_float(Half{static_cast<std::uint16_t>(pair)}),
          math::to_float(Half{static_cast<std::uint16_t>(pair >> 16)})};
}

// Adds the bias pair by pair: registers r and r + 1 are neighbours in memory.
template <class Layout, class T, int kCount>
__device__ __forceinline__ void add_pairs(const T* first, std::int64_t row_stride,
                                          float (&scores)[kCount]) {
#pragma unroll
  for (int r = 0; r < kCount; r += 2) {
    const float2 pair = read_pair(first + Layout::row_offset(r) * row_stride + Layout::column(r));
    scores[r] += pair.x;
    scores[r + 1] += pair.y;
  }
}

// Clears the bits of the columns that the boolean mask masks. first: the offset of the lane's first
// row and key in the mask.
template <class Layout, int kCount>
__device__ __forceinline__ void apply_boolean_mask(const problem::View& mask, std::int64_t first,
                                                   bool pairs,
                                                   std::uint32_t (&visible)[Layout::kRows]) {
  const std::uint8_t* const own = static_cast<const std::uint8_t*>(mask.data) + first;
  if (pairs) {
#pragma unroll
    for (int r = 0; r < kCount; r += 2) {
      const std::int64_t offset = Layout::row_offset(r) * mask.row + Layout::column(r);
      const std::uint32_t pair = *reinterpret_cast<const std::uint16_t*>(own + offset);
      if ((pair & 0xFFu) == 0) visible[Layout::row(r)] &= ~(1u << Layout::bit(r));
      if (pair >> 8 == 0) visible[Layout::row(r)] &= ~(1u << Layout::bit(r + 1));
    }
    return;
  }
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    const int which = Layout::row(r);
    const std::uint32_t bit = 1u << Layout::bit(r);
    const std::int64_t offset = Layout::row_offset(r) * mask.row + Layout::column(r) * mask.column;
    if ((visible[which] & bit) != 0 && own[offset] == 0) visible[which] &= ~bit;
  }
}

// Adds the bias to visible scores. first: the offset of the lane's first row and key in the bias.
template <class Layout, int kCount>
__device__ __forceinline__ void add_bias(const problem::View& bias, std::int64_t first, bool pairs,
                                         const std::uint32_t (&visible)[Layout::kRows],
                                         float (&scores)[kCount]) {
  if (pairs && bias.dtype == TILEWISE_FP32) {
    add_pairs<Layout>(static_cast<const float*>(bias.data) + first, bias.row, scores);
  } else if (pairs && bias.dtype == TILEWISE_BF16) {
    add_pairs<Layout>(static_cast<const math::BFloat16*>(bias.data) + first, bias.row, scores);
  } else if (pairs) {
    add_pairs<Layout>(static_cast<const math::Float16*>(bias.data) + first, bias.row, scores);
  } else {
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const std::int64_t offset =
          first + Layout::row_offset(r) * bias.row + Layout::column(r) * bias.column;
      if ((visible[Layout::row(r)] >> Layout::bit(r) & 1) != 0)
        scores[r] += read_bias(bias, offset);
    }
  }
}

// Says whether every lane of the warp sees all of its columns, in which case pairs may be read.
template <class Layout, int kCount>
__device__ __forceinline__ bool see_all(const std::uint32_t (&visible)[Layout::kRows]) {
  constexpr std::uint32_t kAll = ~0u >> (32 - kCount / Layout::kRows);
  std::uint32_t all = kAll;
#pragma unroll
  for (const std::uint32_t bits : visible) all &= bits;
  return !__any_sync(~0u, all != kAll);
}

// Applies the score mod to the scores of a lane, whose first row and key are `row` and `key`.
// `visible` holds the mask bits of its rows, of which the boolean mask clears some. The bias and
// the boolean mask are not read at columns that the structured mask has cleared.
template <class Layout, class Cap, int kCount>
__device__ __forceinline__ void apply_score_mod(const problem::Problem& problem,
                                                const ScoreScaling& scaling,
                                                const PairLoads& pair_loads, const Head& head,
                                                std::int32_t row, std::int32_t key,
                                                float (&scores)[kCount],
                                                std::uint32_t (&visible)[Layout::kRows]) {
  scale_products<Cap, kCount % 16 == 0 ? 16 : kCount>(scaling, scores);
  constexpr bool kNeighbours = kCount % 2 == 0 && Layout::row(1) == Layout::row(0) &&
                               Layout::column(1) == Layout::column(0) + 1;
  const bool all =
      kNeighbours && (pair_loads.bias || pair_loads.mask) && see_all<Layout, kCount>(visible);
  if (problem.mask.present()) {
    apply_boolean_mask<Layout, kCount>(problem.mask,
                                       problem.mask.offset(head.batch, head.head, row, key),
                                       all && pair_loads.mask, visible);
  }
  if (problem.bias.present()) {
    add_bias<Layout>(problem.bias, problem.bias.offset(head.batch, head.head, row, key),
                     all && pair_loads.bias, visible, scores);
  }
  add_alibi<Layout>(head.slope, row + head.diagonal - key, scores);
}

// Scores whose mask bit is 0 become -inf. kByRow: the scores of a fragment are visited row by row,
// where ptxas turns seven neighbouring bits into predicates at once (R2P) instead of two.
template <class Layout, bool kByRow = false, int kCount>
__device__ __forceinline__ void apply_mask_bits(float (&scores)[kCount],
                                                const std::uint32_t (&visible)[Layout::kRows]) {
  static_assert(!kByRow || std::is_same_v<Layout, FragmentLayout>);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int n = i % (kCount / 2);  // the column of the row
    const int r = kByRow ? n / 2 * 4 + i / (kCount / 2) * 2 + n % 2 : i;
    scores[r] = math::masked((visible[Layout::row(r)] >> Layout::bit(r) & 1) != 0, scores[r]);
  }
}

}  // namespace tilewise::cuda::tile
