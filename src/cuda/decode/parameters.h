// The parameters of the decode kernels.
#pragma once

#include "cuda/tile/pages.h"
#include "cuda/tile/score_scaling.h"
#include "problem/sequence.h"

namespace tilewise::cuda::decode {

using problem::Problem;
using problem::Sequence;

// The state of a row after some of its keys: its largest score, and the sum of its probs relative
// to it.
struct RowState {
  float max;
  float sum;
};

struct Parameters {
  // These members lie side by side, because a line of constants comes from memory when it is first
  // read.
  std::int32_t group;  // query heads of a kv head
  std::int32_t gang;   // blocks that share the units of a segment: one for each of its kv heads
  std::int32_t head_tiles;   // kv heads / gang
  std::int32_t gangs;        // of the launch
  std::int32_t least_units;  // of a gang, as far as there are enough
  std::int32_t q_tile;       // rows of queries of a segment
  std::int32_t block_keys;   // keys of a tile of a block
  std::int32_t unit_tiles;   // tiles of keys of a unit
  std::int32_t window_left;  // as problem's, at most tile::kMaxLength
  std::int32_t window_right;
  bool uniform;                 // all sequences have the same lengths,
  std::int32_t sequence_units;  // and this many units,
  std::int32_t segment_units;   // of which a segment has so many
  bool fixed_parts;             // every unit is a part (batch_invariant)
  bool has_score_mod;           // scores need more than a positive scale
  bool hides_keys;              // a boolean mask or a bias may mask any key
  bool wide_q, wide_out;        // can be read or written 16 bytes at a time
  bool early;                   // the device launches kernels early (PDL)
  std::int32_t columns;         // of a row of part_out
  float scale_log2;             // scale * log2(e): exp(scale * x) = exp2(scale_log2 * x)
  const Sequence* table;        // (B), nullptr for dense batches
  float* part_out;              // (parts, gang, q_tile, columns): normalised rows of out
  RowState* part_states;        // (parts, gang, q_tile)
  Problem problem;
  tile::ScoreScaling scaling;
  tile::Pages pages;
  bool at_phi;           // phi is the anchor of all rows (unified.cuh); for the host
  std::int32_t q_parts;  // with fp8: 2 if fp16 does not hold Q exactly (fp8/queries.cuh)
};

}  // namespace tilewise::cuda::decode
