// The deal: which rank gets which chunk of queries, so that all ranks have the same number of
// chunks and about the same area of the mask.
#pragma once

#include <span>

#include "distributed/magi/ranges.h"

namespace tilewise::distributed::magi {

struct Deal {
  std::vector<std::int32_t> rank_of_chunk;
  std::vector<std::int64_t> area_of_rank;

  std::int64_t largest_area() const;
};

// No deal of these chunks over R ranks, m = floor(n / R) or one more for each, has a largest area
// below the largest of: the mean, rounded up; the largest chunk with the m - 1 smallest; and for
// each f < m the f smallest with the m - f smallest of those after the first f R + R - 1, of which
// some rank has f at most.
std::int64_t area_lower_bound(std::span<const std::int64_t> areas, std::int64_t ranks);

// Consecutive chunks for each rank; the first n mod R ranks get one more.
Deal deal_in_order(std::span<const std::int64_t> areas, std::int64_t ranks);

// The chunks of keys that each chunk of queries sees, as ranges of chunk numbers: chunk c of the
// keys is on the rank of chunk c of the queries.
using ChunkNeeds = std::vector<Ranges>;

// Deals the largest chunk first, to the lightest rank that may take one more: LPT, "longest
// processing time first", with equal counts. Then chunks of the heaviest rank are swapped for
// smaller ones while that helps. With needs, ranks are candidates whose area exceeds the lightest
// one's by at most `slack` times the area of the chunk, and the chunk goes where most of the keys
// that it sees are, or are needed already.
Deal deal_by_area(std::span<const std::int64_t> areas, std::int64_t ranks,
                  const ChunkNeeds* needs = nullptr, std::int64_t slack = 0);

}  // namespace tilewise::distributed::magi
