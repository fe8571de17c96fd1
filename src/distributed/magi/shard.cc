#include "distributed/magi/shard.h"

#include <cstring>
#include <numeric>

namespace tilewise::distributed::magi {
namespace {

// Calls f(row of the shard, row of the whole, number of rows) for each range.
template <class Function>
void for_each_run(const Ranges& shard, Function f) {
  std::int64_t row = 0;
  for (const Range& range : shard) {
    f(row, range.begin, range.end - range.begin);
    row += range.end - range.begin;
  }
}

}  // namespace

void write_positions(const Ranges& shard, std::int64_t* positions) {
  for_each_run(shard, [&](std::int64_t row, std::int64_t from, std::int64_t count) {
    std::iota(positions + row, positions + row + count, from);
  });
}

std::vector<std::int64_t> positions(const Ranges& shard) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(row_count(shard)));
  write_positions(shard, result.data());
  return result;
}

void dispatch(const Ranges& shard, const void* whole, std::int64_t row_bytes, void* rows) {
  for_each_run(shard, [&](std::int64_t row, std::int64_t from, std::int64_t count) {
    std::memcpy(static_cast<char*>(rows) + row * row_bytes,
                static_cast<const char*>(whole) + from * row_bytes,
                static_cast<std::size_t>(count * row_bytes));
  });
}

void undispatch(const Ranges& shard, const void* rows, std::int64_t row_bytes, void* whole) {
  for_each_run(shard, [&](std::int64_t row, std::int64_t to, std::int64_t count) {
    std::memcpy(static_cast<char*>(whole) + to * row_bytes,
                static_cast<const char*>(rows) + row * row_bytes,
                static_cast<std::size_t>(count * row_bytes));
  });
}

}  // namespace tilewise::distributed::magi
