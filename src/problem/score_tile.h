// The tile of scores that a score function gets (tilewise_score_tile): where it lies in its
// sequence. Positions are those of the whole sequence where the problem has parts of it.
#pragma once

#include "problem/sequence.h"

namespace tilewise::problem {

// rows, keys: of the sequence; dtype: of the scores; the strides count elements
inline tilewise_score_tile score_tile(const Problem& problem, const Sequence& sequence,
                                      std::int64_t head, const math::KeyRange& rows,
                                      const math::KeyRange& keys, std::int32_t dtype) {
  const Part part = part_of(problem, sequence.batch);
  tilewise_score_tile tile = {};
  tile.dtype = dtype;
  tile.batch = part.number;
  tile.head = head;
  tile.first_query = part.row + rows.begin;
  tile.first_key = part.key + keys.begin;
  tile.rows = rows.end - rows.begin;
  tile.keys = keys.end - keys.begin;
  tile.row_stride = tile.key_stride = 1;
  tile.diagonal = problem.parts.present() ? part.diagonal : sequence.diagonal;
  return tile;
}

}  // namespace tilewise::problem
