// The plan of a mask over ranks, after MagiAttention (docs/distributed-magi.md): which rank has
// which queries and keys, and which keys each rank needs from others. It is made once for a mask,
// on every rank alike, and depends on its arguments only.
#pragma once

#include "distributed/magi/deal.h"
#include "distributed/magi/mask.h"

namespace tilewise::distributed::magi {

enum class Dealing { kAutomatic, kInOrder, kByArea };

struct PlanOptions {
  std::int64_t ranks = 1;
  std::int64_t chunk_rows = 0;  // of queries; 0: automatic, some 16 chunks for each rank
  std::int64_t stages = 0;      // parts in which a rank receives keys; 0: automatic, up to 8
  Dealing dealing = Dealing::kAutomatic;
};

struct Plan {
  Mask mask;
  std::int64_t ranks = 1;
  std::int64_t chunk_rows = 0;
  std::int64_t stages = 0;  // in which keys arrive; the keys of the rank itself are stage 0

  // Chunk c is the rows [bounds[c], bounds[c + 1]). The keys have the chunks of the queries, and
  // lie with them, if there are as many keys as queries; else one chunk for each rank.
  std::vector<std::int64_t> q_bounds;
  std::vector<std::int64_t> k_bounds;
  std::vector<std::int32_t> q_rank;  // of each chunk
  std::vector<std::int32_t> k_rank;

  std::vector<std::int64_t> area_of_rank;
  std::int64_t area = 0;              // of the mask
  std::int64_t area_lower_bound = 0;  // no deal of these chunks has a smaller largest area

  // For each rank, as rows of the whole: its shard, and the keys that its queries see elsewhere.
  std::vector<Ranges> queries;
  std::vector<Ranges> keys;
  std::vector<Ranges> remote_keys;

  std::int64_t largest_area() const;
  // The largest area over the mean: 1 is perfect; 1 as well if no pair is visible.
  double imbalance() const;
  // Rows of keys (and as many of values) that all ranks receive together, or that one does.
  std::int64_t remote_rows() const;
  std::int64_t remote_rows(std::int64_t rank) const;

  // The keys of a rank's stage, ascending: stage 0 are its own; the others have equal parts of
  // remote_keys. A part is four pieces in a zigzag order (S stages: of 4 S pieces, s, 2 S - 1 - s,
  // 2 S + s and 4 S - 1 - s), so that the parts have about the same area too, for example under a
  // causal mask. Rank r begins with part r mod S, so that not all ranks need the same owners at a
  // time.
  Ranges stage_keys(std::int64_t rank, std::int64_t stage) const;
};

// Returns a number that differs for plans that do: their masks, shards or stages.
std::uint64_t hash_of(const Plan& plan);

// Makes a plan. Errors: ranks below 1, a negative number of rows or stages, more than 2^31 - 1
// chunks.
problem::Status make_plan(const Mask& mask, const PlanOptions& options, Plan* plan);

}  // namespace tilewise::distributed::magi
