// The area of a mask: its number of visible pairs (query, key), summed over the heads if slices
// name heads. A pair that several slices show counts once.
#pragma once

#include <span>

#include "distributed/magi/mask.h"

namespace tilewise::distributed::magi {

// Returns the area of each chunk of rows [bounds[c], bounds[c + 1]); `bounds` ascends and has at
// least one number. Exact: a sweep over the rows keeps the edges of the bands in their order along
// a row. Edges of slope 1 overtake those of slope 0 at known rows, and between two such rows the
// length of the union changes by the same number of keys from a row to the next. Time: (n + c + s)
// log n and n times the bands of a row, for n bands, c chunks and s overtakings (none if slices of
// slope 1 overlap no others).
std::vector<std::int64_t> chunk_areas(const Mask& mask, std::span<const std::int64_t> bounds);

std::int64_t total_area(const Mask& mask);

}  // namespace tilewise::distributed::magi
