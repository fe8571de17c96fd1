// Schedules: which tokens of an axis each rank holds.
#pragma once

#include <tilewise/tilewise_distributed.h>

#include <array>
#include <cstdint>

#include "math/config.h"
#include "math/integer.h"

namespace tilewise::distributed {

enum class Schedule : std::int32_t {
  kAutomatic = TILEWISE_SCHEDULE_AUTOMATIC,
  kContiguous = TILEWISE_SCHEDULE_CONTIGUOUS,
  kZigzag = TILEWISE_SCHEDULE_ZIGZAG,
  kStriped = TILEWISE_SCHEDULE_STRIPED,
  kBalanced = TILEWISE_SCHEDULE_BALANCED
};

const char* schedule_name(Schedule schedule);

// The tokens begin, begin + stride, ... below end; its rows are numbered from 0.
struct TokenRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t stride = 1;

  std::int64_t rows() const { return end > begin ? math::ceil_div(end - begin, stride) : 0; }
  // Returns the number of rows whose token is below `token`.
  std::int64_t rows_below(std::int64_t token) const {
    return math::min(token > begin ? math::ceil_div(token - begin, stride) : 0, rows());
  }
};

// The tokens of a rank: its rows are those of the ranges, one after the other.
struct Shard {
  std::array<TokenRange, TILEWISE_MAX_TOKEN_RANGES> ranges;
  std::int32_t count = 0;

  std::int64_t rows() const;
  // Returns the number of rows before those of a range.
  std::int64_t rows_before(std::int32_t range) const;
};

// Returns the tokens of a rank. Every schedule gives a rank the same number of ranges for any
// length, at least one, and they may be empty. `schedule` is that of a ring, and not automatic.
Shard shard_of(Schedule schedule, std::int64_t length, std::int32_t size, std::int32_t rank);

}  // namespace tilewise::distributed
