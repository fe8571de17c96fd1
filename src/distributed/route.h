// Routes: which keys of a rank another one reads, and from whom it gets them. Keys go around the
// ring, from reader to reader, and only rows that a query sees are sent.
#pragma once

#include <array>

#include "distributed/whole.h"

namespace tilewise::distributed {

// The ranks, and the tokens that they hold.
struct Ring {
  const Whole* whole = nullptr;
  Schedule schedule = Schedule::kContiguous;
  Lengths lengths = {0, 0};
  std::int32_t size = 1;

  Shard queries(std::int32_t rank) const { return shard_of(schedule, lengths.q, size, rank); }
  Shard keys(std::int32_t rank) const { return shard_of(schedule, lengths.k, size, rank); }
  // Returns the rank `steps` after `rank`; steps may be negative.
  std::int32_t after(std::int32_t rank, std::int32_t steps) const {
    return static_cast<std::int32_t>(((std::int64_t{rank} + steps) % size + size) % size);
  }
};

// Some rows of a range of the keys of a rank.
struct Piece {
  std::int32_t range = 0;
  math::KeyRange rows = {0, 0};  // of the range

  std::int64_t count() const { return rows.end - rows.begin; }
  bool covers(const Piece& other) const {
    return range == other.range && rows.begin <= other.rows.begin && rows.end >= other.rows.end;
  }
};

struct Pieces {
  std::array<Piece, TILEWISE_MAX_TOKEN_RANGES> pieces;
  std::int32_t count = 0;

  const Piece* begin() const { return pieces.data(); }
  const Piece* end() const { return pieces.data() + count; }
  std::int64_t rows() const;
  // Returns the rows of the pieces before `piece`, which is one of them.
  std::int64_t rows_before(const Piece* piece) const;
  // Returns the piece that covers `other`, or nullptr.
  const Piece* covering(const Piece& other) const;
};

// Returns the keys of `owner` that `reader` reads: of each range, from the first to the last row
// that any of its queries sees.
Pieces pieces_read(const Ring& ring, std::int32_t reader, std::int32_t owner);

// True if `reader` gets a piece of `owner` from the rank before it in the ring, which read all of
// it one step earlier; otherwise it gets it from the owner. Gradients travel on in the same
// direction: true if the reader passes those of the piece to the rank after it; otherwise it sends
// them home.
bool comes_from_neighbour(const Ring& ring, std::int32_t reader, std::int32_t owner,
                          const Piece& piece);
bool goes_to_neighbour(const Ring& ring, std::int32_t reader, std::int32_t owner,
                       const Piece& piece);

}  // namespace tilewise::distributed
