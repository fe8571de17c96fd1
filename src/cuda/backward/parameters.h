// The parameters of the kernels of the backward pass.
//
// Rows of queries are numbered by tiles, those of the forward schedule: a tile has q_tile rows of
// one head of one sequence, of which the last ones may lie beyond the sequence's end.
#pragma once

#include "cuda/sm80/parameters.h"
#include "cuda/tile/block_mask.h"

namespace tilewise::cuda::backward {

using problem::Problem;
using problem::Sequence;

// The tiles into which the arrays of the workspace are cut.
struct TileShape {
  int q_tile;
  int columns;  // of a row of dQ
};

struct Parameters : cuda::sm80::Parameters {  // schedule and packed number the tiles of queries
  tile::Schedule key_schedule;                // the tiles of keys of the kv heads
  tile::PackedSchedule key_packed;
  TileShape shape;
  bool score_mod;  // scores need more than a positive scale, or probs are dropped
  // The row statistics (query tiles, 2, q_tile): LSE * log2(e), then delta. A row without keys, or
  // beyond the end of its sequence, has an LSE of infinity, so that its probs are 0.
  float* statistics;
  float* dq_sums;  // (query tiles, q_tile * columns): sums of dS K; nullptr if dQ is not asked for
  // With a fixed order of the sums of dQ: how many blocks have added to each tile of queries, and
  // how many blocks have started. Otherwise nullptr.
  unsigned long long* turns;
  unsigned* ticket;
  bool aligned16_dout;
  tile::BlockMask block_mask;  // of tiles of keys; only of kernels that have one
};

// Loads the kernels of the backward pass that do not depend on the architecture.
cudaError_t load_common_kernels();

// Fills the statistics and sets dq_sums to zero.
cudaError_t start_preprocess(const Parameters& parameters, std::int64_t tiles, cudaStream_t stream);

// Writes dSink.
cudaError_t start_sink_gradient(const Parameters& parameters, cudaStream_t stream);

}  // namespace tilewise::cuda::backward
