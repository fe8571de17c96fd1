#include "distributed/magi/area.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace tilewise::distributed::magi {
namespace {

// The bands of the current row as a list of their ends, sorted by key, and the length of the union.
class UnionOfBands {
 public:
  explicit UnionOfBands(std::span<const math::Band> bands)
      : bands_(bands), edges_(2 * bands.size() + 2) {
    head_ = static_cast<int>(2 * bands.size());
    tail_ = head_ + 1;
    edge(head_).next = tail_;
    edge(tail_).previous = head_;
  }

  void add(int band, std::int64_t row) {
    const math::Band& added = bands_[static_cast<std::size_t>(band)];
    const int first = 2 * band;
    const int last = first + 1;
    const bool lower_moves = added.lower_slope && row + added.lower_offset >= added.key_begin;
    const bool upper_moves = added.upper_slope && row + added.upper_offset < added.key_end;
    edge(first) = line(added.begin(row), row, lower_moves);
    edge(last) = line(added.end(row), row, upper_moves);
    edge(first).sign = 1;
    edge(last).sign = -1;
    insert(first, place_of(first, edge(head_).next, row, 0));
    insert(last, place_of(last, edge(first).next, row, 1));
  }

  void remove(int band) {
    const int first = 2 * band;
    const int last = first + 1;
    for (int i = edge(first).next; i != last; i = edge(i).next) change_depth(i, -1);
    unlink(first);
    unlink(last);
  }

  // From now on the end of the band moves, or stops moving.
  void set_slope(int end, std::int64_t slope, std::int64_t row) {
    Edge& changed = edge(end);
    count(end, -1);
    changed.offset += (changed.slope - slope) * row;
    changed.slope = slope;
    count(end, 1);
    schedule(changed.previous, end);
    schedule(end, changed.next);
  }

  // The next row at which an edge of slope 1 reaches one of slope 0; INT64_MAX: none.
  std::int64_t next_meeting() const { return meetings_.empty() ? INT64_MAX : meetings_.top().row; }

  // Swaps neighbours that have met, up to `row`.
  void swap_met(std::int64_t row) {
    while (!meetings_.empty() && meetings_.top().row <= row) {
      const Meeting met = meetings_.top();
      meetings_.pop();
      if (edge(met.left).next == met.right && meets(met.left, met.right) &&
          meeting_row(met.left, met.right) <= row) {
        swap(met.left, met.right);
      }
    }
  }

  std::int64_t length(std::int64_t row) const { return constant_ + slope_ * row; }

 private:
  struct Edge {
    std::int64_t offset = 0;  // key = slope * row + offset
    std::int64_t slope = 0;
    int sign = 0;   // 1: a band begins, -1: one ends
    int depth = 0;  // the number of bands after the edge
    int previous = -1;
    int next = -1;
  };
  struct Meeting {
    std::int64_t row;
    int left;
    int right;
    bool operator<(const Meeting& other) const { return row > other.row; }  // the first is on top
  };

  static Edge line(std::int64_t key, std::int64_t row, bool moves) {
    Edge result;
    result.slope = moves ? 1 : 0;
    result.offset = key - result.slope * row;
    return result;
  }

  Edge& edge(int i) { return edges_[static_cast<std::size_t>(i)]; }
  const Edge& edge(int i) const { return edges_[static_cast<std::size_t>(i)]; }

  // Adds the edge's part of the length of the union, or takes it away.
  void count(int i, int times) {
    const Edge& counted = edge(i);
    const int outside = counted.sign > 0 ? counted.depth - 1 : counted.depth;
    if (outside != 0 || counted.sign == 0) return;
    const std::int64_t part = std::int64_t{times} * counted.sign;
    constant_ -= part * counted.offset;
    slope_ -= part * counted.slope;
  }

  void change_depth(int i, int change) {
    count(i, -1);
    edge(i).depth += change;
    count(i, 1);
  }

  // Returns the first edge from `i` on that is after the edge `inserted`, and changes the depth of
  // those before it.
  int place_of(int inserted, int i, std::int64_t row, int change) {
    const std::int64_t key = edge(inserted).slope * row + edge(inserted).offset;
    for (; i != tail_ && edge(i).slope * row + edge(i).offset <= key; i = edge(i).next) {
      if (change != 0) change_depth(i, change);
    }
    return i;
  }

  void insert(int i, int next) {
    Edge& inserted = edge(i);
    inserted.next = next;
    inserted.previous = edge(next).previous;
    inserted.depth = edge(inserted.previous).depth + inserted.sign;
    edge(inserted.previous).next = i;
    edge(next).previous = i;
    count(i, 1);
    schedule(inserted.previous, i);
    schedule(i, next);
  }

  void unlink(int i) {
    count(i, -1);
    Edge& removed = edge(i);
    edge(removed.previous).next = removed.next;
    edge(removed.next).previous = removed.previous;
    schedule(removed.previous, removed.next);
    removed.next = -1;  // no meeting of this edge counts any more
  }

  bool meets(int left, int right) const {
    return edge(left).sign != 0 && edge(right).sign != 0 && edge(left).slope == 1 &&
           edge(right).slope == 0;
  }
  std::int64_t meeting_row(int left, int right) const {
    return edge(right).offset - edge(left).offset;
  }
  void schedule(int left, int right) {
    if (meets(left, right)) meetings_.push({meeting_row(left, right), left, right});
  }

  void swap(int left, int right) {
    count(left, -1);
    count(right, -1);
    const int previous = edge(left).previous;
    const int next = edge(right).next;
    edge(right).depth = edge(previous).depth + edge(right).sign;
    edge(left).depth = edge(right).depth + edge(left).sign;
    edge(previous).next = right;
    edge(right).previous = previous;
    edge(right).next = left;
    edge(left).previous = right;
    edge(left).next = next;
    edge(next).previous = left;
    count(left, 1);
    count(right, 1);
    schedule(previous, right);
    schedule(left, next);
  }

  std::span<const math::Band> bands_;
  std::vector<Edge> edges_;  // 2 b and 2 b + 1: the ends of band b; then head and tail of the list
  std::priority_queue<Meeting> meetings_;
  int head_;
  int tail_;
  std::int64_t constant_ = 0;  // the length of the union is slope_ * row + constant_
  std::int64_t slope_ = 0;
};

enum class Change { kRemove, kLowerMoves, kUpperStops, kAdd };  // in the order of a row

struct Event {
  std::int64_t row;
  Change change;
  int band;
  bool operator<(const Event& other) const {
    return std::tie(row, change, band) < std::tie(other.row, other.change, other.band);
  }
};

std::vector<Event> events_of(std::span<const math::Band> bands) {
  std::vector<Event> events;
  events.reserve(4 * bands.size());
  for (std::size_t b = 0; b < bands.size(); ++b) {
    const math::Band& band = bands[b];
    const int number = static_cast<int>(b);
    events.push_back({band.row_begin, Change::kAdd, number});
    events.push_back({band.row_end, Change::kRemove, number});
    const std::int64_t moves = band.key_begin - band.lower_offset;
    if (band.lower_slope && moves > band.row_begin && moves < band.row_end) {
      events.push_back({moves, Change::kLowerMoves, number});
    }
    const std::int64_t stops = band.key_end - band.upper_offset;
    if (band.upper_slope && stops > band.row_begin && stops < band.row_end) {
      events.push_back({stops, Change::kUpperStops, number});
    }
  }
  std::sort(events.begin(), events.end());
  return events;
}

void apply(const Event& event, UnionOfBands& bands) {
  switch (event.change) {
    case Change::kAdd:
      return bands.add(event.band, event.row);
    case Change::kRemove:
      return bands.remove(event.band);
    case Change::kLowerMoves:
      return bands.set_slope(2 * event.band, 1, event.row);
    case Change::kUpperStops:
      return bands.set_slope(2 * event.band + 1, 0, event.row);
  }
}

// Adds `times` the area of the bands in each chunk to areas[c].
void add_areas(std::span<const math::Band> bands, std::span<const std::int64_t> bounds,
               std::int64_t times, std::vector<std::int64_t>& areas) {
  const std::vector<Event> events = events_of(bands);
  UnionOfBands united(bands);
  std::size_t event = 0;
  std::int64_t row = events.empty() ? 0 : events.front().row;
  std::size_t chunk = 0;
  while (event < events.size()) {
    while (event < events.size() && events[event].row <= row) apply(events[event++], united);
    united.swap_met(row);
    std::int64_t end = event < events.size() ? events[event].row : row;
    end = std::min(end, united.next_meeting());
    while (chunk + 1 < bounds.size() && bounds[chunk + 1] <= row) ++chunk;
    if (bounds[chunk] > row) {
      end = std::min(end, bounds[chunk]);
    } else if (chunk + 1 < bounds.size()) {
      end = std::min(end, bounds[chunk + 1]);
      areas[chunk] += times * ((united.length(row) + united.length(end - 1)) * (end - row) / 2);
    }
    row = end;
  }
}

}  // namespace

std::vector<std::int64_t> chunk_areas(const Mask& mask, std::span<const std::int64_t> bounds) {
  std::vector<std::int64_t> areas(bounds.size() - 1);
  std::vector<std::int64_t> named;  // the heads that slices name
  for (const MaskBand& entry : mask.bands) {
    if (entry.head >= 0) named.push_back(entry.head);
  }
  std::sort(named.begin(), named.end());
  named.erase(std::unique(named.begin(), named.end()), named.end());
  named.push_back(-1);  // all the others, which see the slices of all heads
  for (const std::int64_t head : named) {
    std::vector<math::Band> bands;
    for (const MaskBand& entry : mask.bands) {
      if (entry.head == -1 || entry.head == head) bands.push_back(entry.band);
    }
    const auto others = mask.heads - static_cast<std::int64_t>(named.size() - 1);
    if (head >= 0 || others > 0) add_areas(bands, bounds, head >= 0 ? 1 : others, areas);
  }
  return areas;
}

std::int64_t total_area(const Mask& mask) {
  const std::int64_t bounds[] = {0, mask.q_len};
  return chunk_areas(mask, bounds)[0];
}

}  // namespace tilewise::distributed::magi
