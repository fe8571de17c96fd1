// A rank's shard of the tokens: from the order of the whole to that of the ranks, and back.
#pragma once

#include "distributed/magi/ranges.h"

namespace tilewise::distributed::magi {

// Writes the numbers of a shard's rows in the whole, in the order of the shard: the positions for
// RoPE.
void write_positions(const Ranges& shard, std::int64_t* positions);
std::vector<std::int64_t> positions(const Ranges& shard);

// Copies the rows of the shard, of `row_bytes` each, from an array of the whole, one after another.
void dispatch(const Ranges& shard, const void* whole, std::int64_t row_bytes, void* rows);

// Copies the rows of the shard to their places in an array of the whole. The other rows stay.
void undispatch(const Ranges& shard, const void* rows, std::int64_t row_bytes, void* whole);

}  // namespace tilewise::distributed::magi
