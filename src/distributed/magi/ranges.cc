#include "distributed/magi/ranges.h"

#include <algorithm>

namespace tilewise::distributed::magi {

void normalise(Ranges& ranges) {
  std::erase_if(ranges, [](const Range& range) { return range.begin >= range.end; });
  const auto before = [](const Range& a, const Range& b) { return a.begin < b.begin; };
  if (!std::is_sorted(ranges.begin(), ranges.end(), before)) {
    std::sort(ranges.begin(), ranges.end(), before);
  }
  std::size_t count = 0;
  for (const Range& range : ranges) {
    if (count > 0 && range.begin <= ranges[count - 1].end) {
      ranges[count - 1].end = math::max(ranges[count - 1].end, range.end);
    } else {
      ranges[count++] = range;
    }
  }
  ranges.resize(count);
}

std::int64_t row_count(const Ranges& ranges) {
  std::int64_t rows = 0;
  for (const Range& range : ranges) rows += range.end - range.begin;
  return rows;
}

void append(Ranges& ranges, std::int64_t begin, std::int64_t end) {
  if (begin >= end) return;
  if (!ranges.empty() && ranges.back().end == begin) {
    ranges.back().end = end;
  } else {
    ranges.push_back({begin, end});
  }
}

Ranges intersection(const Ranges& a, const Ranges& b) {
  Ranges result;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    append(result, math::max(a[i].begin, b[j].begin), math::min(a[i].end, b[j].end));
    if (a[i].end < b[j].end) {
      ++i;
    } else {
      ++j;
    }
  }
  return result;
}

Ranges difference(const Ranges& a, const Ranges& b) {
  Ranges result;
  std::size_t j = 0;
  for (const Range& range : a) {
    std::int64_t begin = range.begin;
    while (j < b.size() && b[j].end <= begin) ++j;
    for (std::size_t k = j; k < b.size() && b[k].begin < range.end; ++k) {
      append(result, begin, b[k].begin);
      begin = b[k].end;
    }
    append(result, begin, range.end);
  }
  return result;
}

std::size_t first_ending_after(const Ranges& ranges, std::int64_t row) {
  const auto found = std::partition_point(ranges.begin(), ranges.end(),
                                          [&](const Range& range) { return range.end <= row; });
  return static_cast<std::size_t>(found - ranges.begin());
}

Ranges rows_from_to(const Ranges& ranges, std::int64_t begin, std::int64_t end) {
  Ranges result;
  std::int64_t before = 0;
  for (const Range& range : ranges) {
    const std::int64_t rows = range.end - range.begin;
    append(result, range.begin + math::clamp(begin - before, 0, rows),
           range.begin + math::clamp(end - before, 0, rows));
    before += rows;
  }
  return result;
}

std::vector<std::int64_t> rows_before(const Ranges& ranges) {
  std::vector<std::int64_t> result;
  result.reserve(ranges.size());
  std::int64_t before = 0;
  for (const Range& range : ranges) {
    result.push_back(before);
    before += range.end - range.begin;
  }
  return result;
}

}  // namespace tilewise::distributed::magi
