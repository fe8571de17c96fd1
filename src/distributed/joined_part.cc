#include "distributed/joined_part.h"

#include <algorithm>

namespace tilewise::distributed {
namespace {

using problem::Sequence;

// The rows of a part that lie in one range, and their positions in the sequence.
struct Run {
  std::int64_t first = 0;  // row of the part
  std::int64_t count = 0;
  std::int64_t position = 0;  // of the first row
};

struct Side {
  std::int64_t begin = 0;  // rows of the joined ranges
  std::int64_t end = 0;
  Run runs[TILEWISE_MAX_TOKEN_RANGES];
  std::size_t count = 0;
};

Side side_of(std::span<const TokenRange> ranges, std::int64_t start, std::int64_t length) {
  Side side;
  for (const TokenRange& range : ranges) {
    const std::int64_t before = range.rows_below(start);
    const std::int64_t below = range.rows_below(start + length);
    if (below > before) {
      side.runs[side.count++] = {side.end - side.begin, below - before,
                                 range.begin + before - start};
    }
    side.begin += before;
    side.end += below;
  }
  return side;
}

// The number of keys of a part whose position is at most that of a row plus `offset`, for all rows.
class Counts {
 public:
  Counts(const Side& queries, const Side& keys, std::int64_t offset)
      : queries_(queries), keys_(keys), offset_(offset) {}

  std::int64_t at(std::int64_t row) const {
    const Run* run = queries_.runs;
    while (run + 1 < queries_.runs + queries_.count && row >= run[1].first) ++run;
    const std::int64_t last = run->position + row - run->first + offset_;
    std::int64_t count = 0;
    for (std::size_t k = 0; k < keys_.count; ++k) {
      const std::int64_t below = last - keys_.runs[k].position + 1;
      count += std::clamp<std::int64_t>(below, 0, keys_.runs[k].count);
    }
    return count;
  }

  // Whether the count of every row is clamp(row + reach, 0, all keys). Both are linear between the
  // rows where a run of queries begins, or a count begins or ends to grow.
  bool equal_band(std::int64_t reach) const {
    const std::int64_t rows = queries_.end - queries_.begin;
    const std::int64_t keys = keys_.end - keys_.begin;
    const auto equal_near = [&](std::int64_t bend) {
      for (std::int64_t row = bend - 1; row <= bend + 1; ++row) {
        if (row >= 0 && row < rows && at(row) != std::clamp<std::int64_t>(row + reach, 0, keys))
          return false;
      }
      return true;
    };
    bool equal =
        equal_near(0) && equal_near(rows - 1) && equal_near(-reach) && equal_near(keys - reach);
    for (std::size_t q = 0; q < queries_.count; ++q) {
      const Run& run = queries_.runs[q];
      equal = equal && equal_near(run.first);
      for (std::size_t k = 0; k < keys_.count; ++k) {
        const std::int64_t begin = keys_.runs[k].position - run.position - offset_ + run.first;
        equal = equal && equal_near(begin - 1) && equal_near(begin + keys_.runs[k].count - 1);
      }
    }
    return equal;
  }

  // The last row that does not see all keys; it exists.
  std::int64_t last_cut_row() const {
    const std::int64_t keys = keys_.end - keys_.begin;
    std::int64_t low = 0;
    std::int64_t high = queries_.end - queries_.begin - 1;
    while (low < high) {
      const std::int64_t middle = (low + high + 1) / 2;
      if (at(middle) < keys) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

 private:
  const Side& queries_;
  const Side& keys_;
  std::int64_t offset_;
};

}  // namespace

JoinedPart join_parts(const Whole& whole, const Sequence& sequence,
                      std::span<const TokenRange> queries, std::span<const TokenRange> keys) {
  const Side q = side_of(queries, sequence.q_start, sequence.q_len);
  const Side k = side_of(keys, sequence.k_start, sequence.k_len);
  JoinedPart part = {q.begin, q.end, k.begin, k.end, k.end - k.begin, true};
  if (whole.problem.window_right < 0 || part.rows() == 0 || part.keys() == 0) return part;
  // A wider window sees everything.
  const std::int64_t right = std::min(whole.problem.window_right, sequence.q_len + sequence.k_len);
  const Counts counts(q, k, sequence.diagonal + right);
  if (counts.at(0) == part.keys()) return part;
  const std::int64_t row = counts.last_cut_row();
  part.reach = counts.at(row) - row;
  if (counts.at(row) == 0 && row == part.rows() - 1)
    part.reach = -part.rows();  // no row sees a key
  part.is_band = counts.equal_band(part.reach);
  return part;
}

}  // namespace tilewise::distributed
