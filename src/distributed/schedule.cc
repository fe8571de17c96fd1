#include "distributed/schedule.h"

namespace tilewise::distributed {
namespace {

// Returns where part `number` of `parts` begins, whose lengths differ by at most 1: the first ones
// are the longer ones.
std::int64_t part_begin(std::int64_t length, std::int64_t parts, std::int64_t number) {
  return number * (length / parts) + math::min(number, length % parts);
}

TokenRange part_of_axis(std::int64_t length, std::int64_t parts, std::int64_t number) {
  return {part_begin(length, parts, number), part_begin(length, parts, number + 1), 1};
}

}  // namespace

const char* schedule_name(Schedule schedule) {
  switch (schedule) {
    case Schedule::kAutomatic:
      return "automatic";
    case Schedule::kContiguous:
      return "contiguous";
    case Schedule::kZigzag:
      return "zigzag";
    case Schedule::kStriped:
      return "striped";
    case Schedule::kBalanced:
      return "balanced";
  }
  return "unknown schedule";
}

std::int64_t Shard::rows() const { return rows_before(count); }

std::int64_t Shard::rows_before(std::int32_t range) const {
  std::int64_t rows = 0;
  for (std::int32_t r = 0; r < range; ++r) rows += ranges[static_cast<std::size_t>(r)].rows();
  return rows;
}

Shard shard_of(Schedule schedule, std::int64_t length, std::int32_t size, std::int32_t rank) {
  Shard shard;
  shard.count = 1;
  if (schedule == Schedule::kStriped) {
    shard.ranges[0] = {math::min(rank, length), length, size};
  } else if (schedule == Schedule::kContiguous) {
    shard.ranges[0] = part_of_axis(length, size, rank);
  } else {
    const std::int64_t parts = 2 * std::int64_t{size};
    const TokenRange first = part_of_axis(length, parts, rank);
    const TokenRange second = part_of_axis(length, parts, parts - 1 - rank);
    if (rank == size - 1) {  // the two in the middle are one range
      shard.ranges[0] = {first.begin, second.end, 1};
    } else {
      shard.ranges = {first, second};
      shard.count = 2;
    }
  }
  return shard;
}

}  // namespace tilewise::distributed
