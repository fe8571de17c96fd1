// A tile of scores: t_count rows of kWidth SIMD lanes. Lanes are queries and rows are keys, or the
// other way round.
#pragma once

#include "cpu/simd/vector.h"
#include "math/mask_rule.h"
#include "problem/band_index.h"
#include "problem/problem.h"
#include "problem/sequence.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using math::Band;
using math::TileClass;
using problem::BandIndex;
using problem::Problem;
using problem::Sequence;

enum class Lanes { kQueries, kKeys };

// Position of a tile in its (sequence, head): local coordinates of its first row and lane, and its
// size.
struct TileBounds {
  std::int64_t lane0;
  std::int64_t lane_count;
  std::int64_t t0;
  std::int64_t t_count;
};

// The (sequence, query head) that a tile belongs to, and the bands of its mask: one band without
// slices. With slices a context of a whole head has the index of all bands, and that of a tile the
// list of those that touch it (narrowed(), common/mask.h). GQA: the query heads of a group share
// one kv head (MQA: all of them do).
struct HeadContext {
  const Problem* problem;
  Sequence sequence;
  std::int64_t head;
  const Band* bands;
  std::int64_t band_count;
  const BandIndex* index = nullptr;  // nullptr: `bands` are all that there are

  TILEWISE_INLINE std::int64_t kv_head() const { return head / problem->group; }
};

TILEWISE_INLINE math::KeyRange rows_of(Lanes lanes, const TileBounds& bounds) {
  if (lanes == Lanes::kQueries) return {bounds.lane0, bounds.lane0 + bounds.lane_count};
  return {bounds.t0, bounds.t0 + bounds.t_count};
}
TILEWISE_INLINE math::KeyRange keys_of(Lanes lanes, const TileBounds& bounds) {
  if (lanes == Lanes::kQueries) return {bounds.t0, bounds.t0 + bounds.t_count};
  return {bounds.lane0, bounds.lane0 + bounds.lane_count};
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
