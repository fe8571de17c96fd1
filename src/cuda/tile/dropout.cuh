// Dropout of the probs of a thread, by the Philox words of math/philox.h.
#pragma once

#include "cuda/tile/fragment.h"
#include "math/philox.h"

namespace tilewise::cuda::tile {

// Sets the dropped probs of a fragment to 0. The lane's first row and column are `row` and `column`
// of their sequence.
//
// A call of Philox gives the words of four columns, which two lanes share. The even lane of such a
// pair computes the words of the first row, the odd lane those of the second, and they exchange
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

// The word of a column. Indexing by a variable would put the words into local memory.
__device__ __forceinline__ std::uint32_t word_of(const math::Philox4& words, std::int32_t column) {
  const std::uint32_t low = column % 2 == 0 ? words.word[0] : words.word[1];
  const std::uint32_t high = column % 2 == 0 ? words.word[2] : words.word[3];
  return column / 2 % 2 == 0 ? low : high;
}

// Which of kCount adjacent columns of a row are kept: bit n stands for column + n. `column` is a
// multiple of kCount, so that one draw, which has the words of 4 columns, includes all of them.
template <int kCount>
__device__ __forceinline__ std::uint32_t kept_bits(const math::DropoutRule& rule,
                                                   std::int64_t head_index, std::int32_t row,
                                                   std::int32_t column) {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4);
  const math::Philox4 words = math::dropout_words(rule, head_index, row, column / 4);
  std::uint32_t kept = 0;
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    const std::uint32_t word = kCount == 4 ? words.word[n] : word_of(words, column + n);
    if (word >= rule.threshold) kept |= 1u << n;
  }
  return kept;
}

}  // namespace tilewise::cuda::tile
