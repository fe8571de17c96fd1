// The passes of the AMX kernel over the keys of a block. Most blocks have one. Outputs that are not
// finite need another: with a unit for V, where sums of finite values have overflowed, or on the
// slow path.
#pragma once

#include "cpu/amx/forward_block.h"
#include "cpu/amx/rounding.h"
#include "cpu/common/value_unit.h"
#include "math/integer.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// The exponent of the sum of probs of a block without an overflowed lane (softmax.h).
inline constexpr int kBlockSumExponent = 20;
static_assert(kMaxBlockSum < 0x1p20f);

// The first `count` keys of a block, or all.
TILEWISE_INLINE RowBlock values_of_block(const QueryBlock& block, std::int64_t count = INT64_MAX) {
  const HeadContext& context = block.context;
  const Problem& problem = *context.problem;
  const math::KeyRange keys = keys_of_block(block);
  return {&problem.v,
          context.sequence.batch,
          context.kv_head(),
          context.sequence.k_start + keys.begin,
          math::clamp(keys.end - keys.begin, 0, count),
          problem.value_dim,
          pages_of(problem)};
}

// Returns the unit of a block with some values: 1 unless the largest of them is so large that a sum
// may overflow.
TILEWISE_INLINE float unit_of_values(const QueryBlock& block, float largest) {
  const HeadContext& context = block.context;
  const int room = value_room<float>(*context.problem, context.sequence.k_len) - kBlockSumExponent;
  return exponent_above(largest) > room ? least_unit<float>(room) : 1.0f;
}

// A block whose first value is large has a unit from the first pass on.
TILEWISE_INLINE AmxPass first_pass(const QueryBlock& block) {
  return {false, unit_of_values(block, largest_finite<float>(values_of_block(block, 1)))};
}

// Returns the pass after one whose outputs are not finite.
TILEWISE_INLINE AmxPass next_pass(const QueryBlock& block, const AmxPass& before) {
  const RowBlock values = values_of_block(block);
  const float largest = measure_rows<float>(values).largest;
  const bool finite = math::is_finite(largest);
  const float unit = unit_of_values(block, finite ? largest : largest_finite<float>(values));
  return {!finite || unit == before.value_unit, unit};
}

// Multiplies the packed V of a tile by a unit. Products take its denormal numbers for zeros.
//
// tiles: (padded Dv / 16, kAmxKeys / 32, 16, 32), from pack_column_tiles()
TILEWISE_INLINE void scale_column_tiles(float unit, std::int64_t keys, std::int64_t value_dim,
                                        std::uint16_t* tiles) {
  const Bf16Rounder rounder;
  const auto scaled = [&](Vec<float> x) { return __m512i((x * Vec<float>(unit)).v); };
  const std::int64_t used = math::round_up(keys, kTileDepth) * kTileRows;
  for (std::int64_t c = 0; c < value_dim; c += kTileRows) {
    for (std::uint16_t* at = tiles + c * kAmxKeys; at < tiles + c * kAmxKeys + used;
         at += kTileDepth) {
      const __m512i words = _mm512_loadu_si512(at);
      _mm512_storeu_si512(at, rounder.paired(scaled(Bf16Rounder::lower_half(words)),
                                             scaled(Bf16Rounder::upper_half(words))));
    }
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
