// The calls of every step of a rank, and the lists that they pass: parts, cu_seqlens, seqused.
#include <algorithm>

#include "distributed/joined_part.h"
#include "distributed/ring_plan.h"

namespace tilewise::distributed {
namespace {

using problem::Sequence;

// A window as the kernels take it, for sequences that are parts with a diagonal of their own.
struct Window {
  std::int64_t left = -1;
  std::int64_t right = -1;
  bool operator==(const Window&) const = default;
};

// A sequence of a call: its rows in the two ranges, its line of `parts`, and its window.
struct Entry {
  SequencePart part;
  std::int64_t line[4] = {0, 0, 0, 0};
  Window window;
  bool visible = false;  // a row sees a key
};

class Calls {
 public:
  explicit Calls(RingPlan& plan) : plan_(plan), problem_(plan.whole.problem) {}

  void add_step(std::int32_t step) {
    Step made;
    made.owner = plan_.ring().after(plan_.rank, -step);
    made.pieces = step == 0 ? all_pieces() : pieces_read(plan_.ring(), plan_.rank, made.owner);
    made.calls.begin = plan_.calls.size();
    if (!add_joined(step, made)) add_pairs(step, made);
    made.calls.end = plan_.calls.size();
    plan_.steps.push_back(made);
  }

 private:
  static TokenRange tokens_of(const Shard& keys, const Piece& piece) {
    const TokenRange& range = keys.ranges[static_cast<std::size_t>(piece.range)];
    return {range.begin + piece.rows.begin * range.stride,
            range.begin + piece.rows.end * range.stride, range.stride};
  }

  // Adds a call for each range of queries and each piece of keys.
  void add_pairs(std::int32_t step, const Step& made) {
    const Shard keys = plan_.ring().keys(made.owner);
    for (std::int32_t q = 0; q < plan_.queries.count; ++q) {
      for (std::int32_t p = 0; p < made.pieces.count; ++p) {
        const Piece& piece = made.pieces.pieces[static_cast<std::size_t>(p)];
        // One call of each range of queries passes the sink, even if no key is visible.
        add_pair(q, p, tokens_of(keys, piece), step == 0 && q == p);
      }
    }
  }

  // Whether kernels may take several ranges of queries and keys as one: only the positions of rows
  // in the mask matter then.
  bool may_join(const Step& made) const {
    const bool positions = problem_.window_left >= 0 || problem_.dropout_p > 0 ||
                           problem_.alibi_slopes.present() || plan_.bias.rank > 0 ||
                           plan_.mask.rank > 0;
    return plan_.on_device() && !positions && plan_.queries.ranges[0].stride == 1 &&
           made.pieces.count > 0;
  }

  // The parts of all sequences in some ranges of queries and all pieces of the step.
  std::vector<JoinedPart> joined_parts(const Step& made, std::int32_t first,
                                       std::int32_t count) const {
    const Shard keys = plan_.ring().keys(made.owner);
    TokenRange tokens[TILEWISE_MAX_TOKEN_RANGES];
    for (std::int32_t p = 0; p < made.pieces.count; ++p)
      tokens[p] = tokens_of(keys, made.pieces.pieces[static_cast<std::size_t>(p)]);
    std::vector<JoinedPart> parts;
    for (const Sequence& sequence : plan_.whole.sequences) {
      parts.push_back(
          join_parts(plan_.whole, sequence,
                     {plan_.queries.ranges.data() + first, static_cast<std::size_t>(count)},
                     {tokens, static_cast<std::size_t>(made.pieces.count)}));
    }
    return parts;
  }

  // Adds one call for the step, if its masks are one band for each sequence. After step 0 a range
  // of queries that sees no key is left out.
  bool add_joined(std::int32_t step, const Step& made) {
    if (!may_join(made)) return false;
    Call call;
    call.query_ranges = plan_.queries.count;
    call.pieces = made.pieces.count;
    const auto sees_keys = [](const JoinedPart& part) { return part.sees_keys(); };
    for (std::int32_t q = 0; q < plan_.queries.count && step > 0; ++q) {
      const std::vector<JoinedPart> parts = joined_parts(made, q, 1);
      const bool is_end = q == call.query_range || q + 1 == call.query_range + call.query_ranges;
      if (!is_end || std::any_of(parts.begin(), parts.end(), sees_keys)) continue;
      if (q == call.query_range) ++call.query_range;
      if (--call.query_ranges == 0) return true;
    }
    const std::vector<JoinedPart> parts = joined_parts(made, call.query_range, call.query_ranges);
    const auto is_band = [](const JoinedPart& part) { return part.is_band; };
    if (!std::all_of(parts.begin(), parts.end(), is_band)) return false;
    const bool full = std::all_of(parts.begin(), parts.end(), [](const JoinedPart& part) {
      return !part.sees_keys() || part.is_full();
    });
    const Window window = {-1, full ? -1 : 0};  // the edge is in the diagonals
    entries_.clear();
    for (std::size_t b = 0; b < parts.size(); ++b)
      entries_.push_back(joined_entry(plan_.whole.sequences[b], parts[b], window));
    const std::int64_t q_rows = plan_.query_rows(call);
    if (q_rows > 0) add_entries(call, step == 0, q_rows, made.pieces.rows());
    return true;
  }

  // The diagonal is in the rows and keys of the part, as if these were a whole sequence.
  static Entry joined_entry(const Sequence& sequence, const JoinedPart& part,
                            const Window& window) {
    Entry entry;
    entry.part.q_begin = part.q_begin;
    entry.part.q_end = part.q_end;
    entry.part.k_begin = part.k_begin;
    entry.part.k_end = part.k_end;
    entry.line[0] = sequence.batch;
    entry.line[3] = window.right < 0 ? 0 : part.reach - 1;
    entry.window = window;
    entry.visible = part.sees_keys();
    if (!entry.visible) entry.part.k_end = entry.part.k_begin;  // the window may hide nothing
    return entry;
  }

  // At step 0 the keys are the rank's own tensors, all of their rows.
  Pieces all_pieces() const {
    Pieces pieces;
    for (std::int32_t k = 0; k < plan_.keys.count; ++k) {
      pieces.pieces[static_cast<std::size_t>(pieces.count++)] = {
          k, {0, plan_.keys.ranges[static_cast<std::size_t>(k)].rows()}};
    }
    return pieces;
  }

  Entry entry_of(const Sequence& sequence, const TokenRange& queries,
                 const TokenRange& keys) const {
    Entry entry;
    entry.part = sequence_part(plan_.whole, sequence, queries, keys);
    entry.line[0] = sequence.batch;
    const bool has_left = problem_.window_left >= 0;
    const bool has_right = problem_.window_right >= 0;
    const math::Band& band = entry.part.band;
    if (!entry.part.empty())
      entry.visible = band_area(band, 0, entry.part.q_end - entry.part.q_begin) > 0;
    if (queries.stride == 1) {
      entry.window = {problem_.window_left, problem_.window_right};
      entry.line[1] = entry.part.first_row;
      entry.line[2] = entry.part.first_key;
      entry.line[3] = sequence.diagonal;
    } else if (entry.visible) {  // rows and keys of a stripe, with the band's edges
      const std::int64_t right = band.upper_offset - 1;
      entry.line[3] = has_right ? right : has_left ? band.lower_offset : 0;
      entry.window = {has_left ? entry.line[3] - band.lower_offset : -1, has_right ? 0 : -1};
    }
    return entry;
  }

  void add_pair(std::int32_t query_range, std::int32_t piece, const TokenRange& keys,
                bool with_sink) {
    const TokenRange& queries = plan_.queries.ranges[static_cast<std::size_t>(query_range)];
    if (queries.rows() == 0) return;
    entries_.clear();
    for (const Sequence& sequence : plan_.whole.sequences)
      entries_.push_back(entry_of(sequence, queries, keys));
    Call call;
    call.query_range = query_range;
    call.piece = piece;
    add_entries(call, with_sink, queries.rows(), keys.rows());
  }

  // Adds a call for the entries, without those at the ends that it does not need.
  void add_entries(Call call, bool with_sink, std::int64_t q_rows, std::int64_t k_rows) {
    const bool both_packed = problem_.q_packed && problem_.k_packed;
    const auto needed = [&](const Entry& entry) {
      return entry.visible || (with_sink && entry.part.q_begin < entry.part.q_end);
    };
    std::size_t first = 0;
    std::size_t last = entries_.size();
    if (both_packed) {
      while (first < last && !needed(entries_[first])) ++first;
      while (last > first && !needed(entries_[last - 1])) --last;
    }
    call.first_sequence = static_cast<std::int64_t>(first);
    call.sequences = static_cast<std::int64_t>(last - first);
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(last), entries_.end());
    entries_.erase(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(first));
    if (!entries_.empty()) add_windows(call, with_sink, q_rows, k_rows);
  }

  // A call has one window. Stripes of a two-sided window differ by 1 between sequences, so there
  // may be several calls, each with its own sequences. The first call takes the sequences that see
  // no key, because their rows need the sink.
  void add_windows(Call call, bool with_sink, std::int64_t q_rows, std::int64_t k_rows) {
    std::vector<Window> windows;
    for (const Entry& entry : entries_) {
      const bool known = std::find(windows.begin(), windows.end(), entry.window) != windows.end();
      if (entry.visible && !known) windows.push_back(entry.window);
    }
    if (windows.empty() && with_sink)
      windows.push_back({problem_.window_left, problem_.window_right});
    for (std::size_t w = 0; w < windows.size(); ++w) {
      call.with_sink = with_sink;
      call.window_left = windows[w].left;
      call.window_right = windows[w].right;
      call.begins = begins(call);
      add_lists(call, windows[w], w == 0 && with_sink, q_rows, k_rows);
      plan_.calls.push_back(call);
    }
  }

  // Appends numbers to the lists and returns where they begin.
  template <class Function>
  std::int64_t add_list(Function append) {
    const std::int64_t begin = static_cast<std::int64_t>(plan_.lists.size());
    append(plan_.lists);
    return begin;
  }

  // Whether a call is the first of its ranges of queries, whose results it writes. A backward call
  // has sums of keys too, which it may write if they are the rank's own, all at once; a dbias has
  // sums of other keys besides. On the CPU all calls add to sums that begin with 0.
  bool begins(const Call& call) const {
    if (!plan_.on_device()) return false;
    if (plan_.backward()) {
      const bool is_whole =
          call.query_ranges == plan_.queries.count && call.pieces == plan_.keys.count;
      return plan_.calls.empty() && is_whole && plan_.dbias.rank == 0;
    }
    return std::none_of(plan_.calls.begin(), plan_.calls.end(),
                        [&](const Call& other) { return other.has_range(call.query_range); });
  }

  // Whether the kernel needs the places of the parts in the whole. On a device, a call without them
  // saves the kernel that reads them.
  bool needs_parts(const Window& window) const {
    if (!plan_.on_device() || problem_.dropout_p > 0 || problem_.alibi_slopes.present())
      return true;
    const bool has_window = window.left >= 0 || window.right >= 0;
    return has_window && std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
             return entry.line[1] + entry.line[3] - entry.line[2] != 0;
           });
  }

  void add_lists(Call& call, const Window& window, bool takes_unseen, std::int64_t q_rows,
                 std::int64_t k_rows) {
    if (needs_parts(window)) {
      call.parts = add_list([&](auto& list) {
        for (const Entry& entry : entries_)
          list.insert(list.end(), std::begin(entry.line), std::end(entry.line));
      });
    }
    if (problem_.q_packed) {
      call.cu_seqlens_q = add_list([&](auto& list) {
        for (const Entry& entry : entries_) list.push_back(entry.part.q_begin);
        list.push_back(entries_.back().part.q_end);
      });
    }
    if (problem_.k_packed) {
      call.cu_seqlens_k = add_list([&](auto& list) {
        for (const Entry& entry : entries_) list.push_back(entry.part.k_begin);
        list.push_back(entries_.back().part.k_end);
      });
    }
    add_used_rows(call, window, takes_unseen, q_rows, k_rows);
  }

  // The rows that the sequences use, if these are not all rows that they have.
  void add_used_rows(Call& call, const Window& window, bool takes_unseen, std::int64_t q_rows,
                     std::int64_t k_rows) {
    bool cut = false;
    const auto add = [&](bool packed, std::int64_t rows, std::int64_t SequencePart::*begin,
                         std::int64_t SequencePart::*end, bool unseen) {
      return add_list([&](auto& list) {
        for (std::size_t e = 0; e < entries_.size(); ++e) {
          const Entry& entry = entries_[e];
          const bool taken = entry.window == window || (!entry.visible && unseen);
          const std::int64_t used = taken ? entry.part.*end - entry.part.*begin : 0;
          cut = cut || used != extent(e, packed, rows, begin, end);
          list.push_back(used);
        }
      });
    };
    const std::size_t before = plan_.lists.size();
    call.seqused_q =
        add(problem_.q_packed, q_rows, &SequencePart::q_begin, &SequencePart::q_end, takes_unseen);
    call.seqused_k =
        add(problem_.k_packed, k_rows, &SequencePart::k_begin, &SequencePart::k_end, false);
    if (cut) return;
    plan_.lists.resize(before);
    call.seqused_q = call.seqused_k = -1;
  }

  // Returns the rows that a sequence has in the call without seqused.
  std::int64_t extent(std::size_t e, bool packed, std::int64_t rows,
                      std::int64_t SequencePart::*begin, std::int64_t SequencePart::*end) const {
    if (!packed) return rows;
    const std::int64_t stop =
        e + 1 < entries_.size() ? entries_[e + 1].part.*begin : entries_[e].part.*end;
    return stop - entries_[e].part.*begin;
  }

  RingPlan& plan_;
  const problem::Problem& problem_;
  std::vector<Entry> entries_;  // of the call that is being made
};

}  // namespace

void plan_calls(RingPlan& plan) {
  Calls calls(plan);
  for (std::int32_t step = 0; step < plan.size; ++step) calls.add_step(step);
}

}  // namespace tilewise::distributed
