// The score_mod score rule on the scores of a lane: scale, softcap, bias, ALiBi, the boolean
// mask, dropout (math/score_rule.h, math/philox.h). What a problem has of them is read at run time:
// each is a pass of its own over the scores, so that what is absent costs one comparison.
#pragma once

#include <type_traits>

#include "cuda/ptx/address.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/pair_loads.h"
#include "cuda/tile/softcap.cuh"
#include "math/number.h"
#include "math/philox.h"
#include "math/score_rule.h"
#include "problem/problem.h"

namespace tilewise::cuda::tile {

// Of ALiBi; 0: none.
__device__ __forceinline__ float slope_of(const problem::Problem& problem, std::int64_t batch,
                                          std::int64_t head) {
  if (!problem.alibi_slopes.present()) return 0;
  const std::int64_t place = problem.alibi_slopes.offset(batch, head, 0);
  return static_cast<const float*>(problem.alibi_slopes.data)[place];
}

// A head of a sequence as the rule sees it.
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

// Where the scores of a lane lie, register by register: which of its rows and how far below the
// first one, how many columns from its first one, and the bit of a row's visibility that stands for
// the column. A fragment (tile/fragment.h):
struct FragmentLayout {
  static constexpr int kRows = kRowsPerLane;
  TILEWISE_INLINE static constexpr int row(int r) { return register_row(r); }
  TILEWISE_INLINE static constexpr int row_offset(int r) { return 8 * register_row(r); }
  TILEWISE_INLINE static constexpr int column(int r) { return register_column(r); }
  TILEWISE_INLINE static constexpr int bit(int r) { return r / 4 * 2 + r % 2; }
};

// Scale, or scale and softcap, of products, kTogether at a time: ptxas interleaves what is in one
// block, but of many scores it may keep too much in registers. NOTE: the likely way is said, and
// what is not lies elsewhere: on one H200, D 128, S 8192, softcap runs at 390 TFLOP/s, not 379, and
// ALiBi at 594, not 547.
template <class Cap, int kTogether, int kCount>
__device__ __forceinline__ void scale_products(const ScoreScaling& scaling,
                                               float (&scores)[kCount]) {
  static_assert(kCount % kTogether == 0);
  if (__builtin_expect(scaling.cap <= 0, 0)) {
#pragma unroll
    for (float& score : scores) score *= scaling.scale;
    return;
  }
  const bool is_short = Cap::kTwoForms && scaling.short_unit != 0;
#pragma unroll
  for (int first = 0; first < kCount; first += kTogether) {
    // A branch for each part, unless the parts are one.
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

// distance: of the lane's first row from its first key
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

// Two numbers that lie side by side.
__device__ __forceinline__ float2 read_pair(const float* from) {
  return *reinterpret_cast<const float2*>(from);
}
template <class Half>
__device__ __forceinline__ float2 read_pair(const Half* from) {
  const std::uint32_t pair = *reinterpret_cast<const std::uint32_t*>(from);
  return {math::to_float(Half{static_cast<std::uint16_t>(pair)}),
          math::to_float(Half{static_cast<std::uint16_t>(pair >> 16)})};
}

// Of Layout, pair by pair: register r and the next one are pair_loads in memory.
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

// Where the lane's first row and key lie in the mask; what it hides loses its bit.
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

// The same for the bias, which visible scores gain.
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

// Whether the lanes of the warp see all of their columns: pairs may be read then.
template <class Layout, int kCount>
__device__ __forceinline__ bool see_all(const std::uint32_t (&visible)[Layout::kRows]) {
  constexpr std::uint32_t kAll = ~0u >> (32 - kCount / Layout::kRows);
  std::uint32_t all = kAll;
#pragma unroll
  for (const std::uint32_t bits : visible) all &= bits;
  return !__any_sync(~0u, all != kAll);
}

// The lane's first row and key are `row` and `key`; `visible` are its rows' visible columns, and
// lose those that the boolean mask hides. Nothing is read of a column that the structured mask
// hides.
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

// kByRow: of a fragment, row by row: ptxas makes predicates of seven neighbouring bits at once
// (R2P), not of two.
template <class Layout, bool kByRow = false, int kCount>
__device__ __forceinline__ void apply_mask_bits(float (&scores)[kCount],
                                                const std::uint32_t (&visible)[Layout::kRows]) {
  static_assert(!kByRow || std::is_same_v<Layout, FragmentLayout>);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int n = i % (kCount / 2);  // of a row
    const int r = kByRow ? n / 2 * 4 + i / (kCount / 2) * 2 + n % 2 : i;
    scores[r] = math::masked((visible[Layout::row(r)] >> Layout::bit(r) & 1) != 0, scores[r]);
  }
}

// Drops probs of a fragment. Four words of Philox are the columns of two lanes: the even lane of
// a pair computes those of the first row, the odd one those of the second, and they exchange
// halves.
template <int kCount>
__device__ __forceinline__ void dropout(const math::DropoutRule& rule, std::int64_t head_index,
                                        std::int32_t row, std::int32_t column,
                                        float (&probs)[kCount]) {
  const int lane = threadIdx.x % 32;
  const bool odd = lane % 2 == 1;
  const std::int64_t own_row = row + (odd ? 8 : 0);
#pragma unroll
  for (int block = 0; block < kCount / 4; ++block) {
    const std::int64_t group = column / 4 + block * 2 + lane % 4 / 2;
    const math::Philox4 words = math::dropout_words(rule, head_index, own_row, group);
    const std::uint32_t first = __shfl_xor_sync(~0u, odd ? words.word[0] : words.word[2], 1);
    const std::uint32_t second = __shfl_xor_sync(~0u, odd ? words.word[1] : words.word[3], 1);
    const std::uint32_t chosen[4] = {odd ? first : words.word[0], odd ? second : words.word[1],
                                     odd ? words.word[2] : first, odd ? words.word[3] : second};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (chosen[i] < rule.threshold) probs[block * 4 + i] = 0;
    }
  }
}

}  // namespace tilewise::cuda::tile
