#include "distributed/route.h"

#include <algorithm>

namespace tilewise::distributed {

std::int64_t Pieces::rows() const { return rows_before(end()); }

std::int64_t Pieces::rows_before(const Piece* piece) const {
  std::int64_t rows = 0;
  for (const Piece* earlier = begin(); earlier != piece; ++earlier) rows += earlier->count();
  return rows;
}

const Piece* Pieces::covering(const Piece& other) const {
  const Piece* const found =
      std::find_if(begin(), end(), [&](const Piece& piece) { return piece.covers(other); });
  return found != end() ? found : nullptr;
}

Pieces pieces_read(const Ring& ring, std::int32_t reader, std::int32_t owner) {
  const Shard queries = ring.queries(reader);
  const Shard keys = ring.keys(owner);
  Pieces read;
  for (std::int32_t k = 0; k < keys.count; ++k) {
    math::KeyRange all = {0, 0};
    for (std::int32_t q = 0; q < queries.count; ++q) {
      const math::KeyRange seen =
          visible_rows(*ring.whole, queries.ranges[static_cast<std::size_t>(q)],
                       keys.ranges[static_cast<std::size_t>(k)]);
      if (seen.begin >= seen.end) continue;
      const bool first = all.begin >= all.end;
      all = {first ? seen.begin : std::min(all.begin, seen.begin),
             first ? seen.end : std::max(all.end, seen.end)};
    }
    if (all.begin < all.end) read.pieces[static_cast<std::size_t>(read.count++)] = {k, all};
  }
  return read;
}

bool comes_from_neighbour(const Ring& ring, std::int32_t reader, std::int32_t owner,
                          const Piece& piece) {
  const std::int32_t before = ring.after(reader, -1);
  return before != owner && pieces_read(ring, before, owner).covering(piece) != nullptr;
}

bool goes_to_neighbour(const Ring& ring, std::int32_t reader, std::int32_t owner,
                       const Piece& piece) {
  const std::int32_t next = ring.after(reader, 1);
  return next != owner && pieces_read(ring, next, owner).covering(piece) != nullptr;
}

}  // namespace tilewise::distributed
