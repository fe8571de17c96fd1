// The general score rule on a fragment (tile/fragment.h): scale, softcap, bias, ALiBi, the boolean
// mask, dropout (math/score_rule.h, math/philox.h). What a problem has of them is read at run time:
// each is a pass of its own over the fragment, so that what is absent costs one comparison.
#pragma once

#include "cuda/tile/fragment.h"
#include "math/number.h"
#include "math/philox.h"
#include "math/score_rule.h"
#include "problem/problem.h"

namespace tilewise::cuda::tile {

// A head of a sequence as the rule sees it.
struct Head {
  std::int64_t batch;  // the sequence's number
  std::int64_t head;
  std::int32_t diagonal;
  float slope;  // of ALiBi, 0: none
};

__device__ __forceinline__ Head head_of(const problem::Problem& problem, std::int64_t batch,
                                        std::int64_t head, std::int32_t diagonal) {
  Head result = {batch, head, diagonal, 0};
  if (problem.alibi_slopes.present()) {
    const std::int64_t place = problem.alibi_slopes.offset(batch, head, 0);
    result.slope = static_cast<const float*>(problem.alibi_slopes.data)[place];
  }
  return result;
}

__device__ __forceinline__ float read_bias(const problem::View& bias, std::int64_t offset) {
  if (bias.dtype == TILEWISE_FP32) return static_cast<const float*>(bias.data)[offset];
  if (bias.dtype == TILEWISE_BF16)
    return math::to_float(static_cast<const math::BFloat16*>(bias.data)[offset]);
  return math::to_float(static_cast<const math::Float16*>(bias.data)[offset]);
}

// Bit of a row's visibility that stands for the column of register r (tile/bands.h).
TILEWISE_INLINE constexpr int column_bit(int r) { return r / 4 * 2 + r % 2; }

// The tile of keys begins at `column`; the lane's two rows are row and row + 8; `visible` are their
// visible columns, and lose those that the boolean mask hides. Nothing of a hidden column is read.
template <int kCount>
__device__ __forceinline__ void apply_score_rule(const problem::Problem& problem, const Head& head,
                                                 std::int32_t row, std::int32_t column,
                                                 float (&scores)[kCount],
                                                 std::uint32_t (&visible)[kRowsPerLane]) {
  const float scale = static_cast<float>(problem.scale);
  const std::int32_t key = column + lane_column(threadIdx.x % 32);
#pragma unroll
  for (int r = 0; r < kCount; ++r) scores[r] *= scale;
  if (problem.softcap > 0) {
    const float cap = static_cast<float>(problem.softcap);
#pragma unroll
    for (int r = 0; r < kCount; ++r) scores[r] = math::softcapped(scores[r], cap);
  }
  if (problem.mask.present()) {
    const problem::View& mask = problem.mask;
    const std::uint8_t* const first =
        static_cast<const std::uint8_t*>(mask.data) + mask.offset(head.batch, head.head, row, key);
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const int which = register_row(r);
      const std::uint32_t bit = 1u << column_bit(r);
      const std::int64_t offset = which * 8 * mask.row + register_column(r) * mask.column;
      if ((visible[which] & bit) != 0 && first[offset] == 0) visible[which] &= ~bit;
    }
  }
  if (problem.bias.present()) {
    const std::int64_t first = problem.bias.offset(head.batch, head.head, row, key);
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const int which = register_row(r);
      const std::int64_t offset =
          first + which * 8 * problem.bias.row + register_column(r) * problem.bias.column;
      if ((visible[which] >> column_bit(r) & 1) != 0) scores[r] += read_bias(problem.bias, offset);
    }
  }
  if (head.slope != 0) {
    const std::int32_t distance = row + head.diagonal - key;
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const std::int32_t of_element = distance + register_row(r) * 8 - register_column(r);
      scores[r] += math::alibi(head.slope, static_cast<float>(of_element));
    }
  }
}

template <int kCount>
__device__ __forceinline__ void hide(float (&scores)[kCount],
                                     const std::uint32_t (&visible)[kRowsPerLane]) {
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    scores[r] = math::masked((visible[register_row(r)] >> column_bit(r) & 1) != 0, scores[r]);
  }
}

// Drops weights. Four words of Philox are the columns of two lanes: the even lane of a pair
// computes those of the first row, the odd one those of the second, and they exchange halves.
template <int kCount>
__device__ __forceinline__ void drop(const math::DropoutRule& rule, std::int64_t head_index,
                                     std::int32_t row, std::int32_t column,
                                     float (&weights)[kCount]) {
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
      if (chosen[i] < rule.threshold) weights[block * 4 + i] = 0;
    }
  }
}

}  // namespace tilewise::cuda::tile
