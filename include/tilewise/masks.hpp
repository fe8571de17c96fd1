// Masks that people write, as lists of slices for tilewise_problem::slices. Header-only, C++20.
//
//   const tilewise::masks::Slices slices = tilewise::masks::prefix_lm(4096, 4096, 512);
//   problem.slices = tilewise::masks::tensor(slices);  // a view: `slices` must outlive the call
//
// Lengths are those of one sequence, or of the token axes of packed tensors. A key is visible if
// any slice shows it, so two lists that follow each other are the union of their masks. Arguments
// that make no mask throw tilewise::Error, whose message names the argument, its value and the
// limit. docs/masks.md has a picture of each mask.
#ifndef TILEWISE_MASKS_HPP_
#define TILEWISE_MASKS_HPP_

#include <tilewise/tilewise.hpp>

#include <algorithm>
#include <optional>

namespace tilewise::masks {

// A row of tilewise_problem::slices.
struct Slice {
  std::int64_t q0 = 0;
  std::int64_t q1 = 0;
  std::int64_t k0 = 0;
  std::int64_t k1 = 0;
  std::int64_t kind = TILEWISE_SLICE_FULL;
  std::int64_t head = -1;  // -1: all

  friend bool operator==(const Slice&, const Slice&) = default;
};
using Slices = std::vector<Slice>;

// The keys i + d - left to i + d + right of query i; -1 is unbounded.
struct Window {
  std::int64_t left = -1;
  std::int64_t right = -1;
};

// Returns a view of the list, int64 (N, 6). The list must outlive it.
inline Tensor tensor(const Slices& slices) {
  static_assert(sizeof(Slice) == 6 * sizeof(std::int64_t));
  return tilewise::tensor(const_cast<Slice*>(slices.data()), TILEWISE_INT64,
                          {static_cast<std::int64_t>(slices.size()), 6});
}

namespace detail {

inline constexpr std::int64_t kMost = std::int64_t{1} << 59;  // no sum of two leaves int64

inline std::int64_t in_range(const std::string& name, std::int64_t value, std::int64_t low = 0,
                             std::int64_t high = kMost) {
  if (value >= low && value <= high) return value;
  throw Error(TILEWISE_INVALID_ARGUMENT, name + ": is " + std::to_string(value) + ", must be " +
                                             std::to_string(low) + " to " + std::to_string(high));
}

inline void check_lengths(std::int64_t q_len, std::int64_t k_len) {
  in_range("q_len", q_len);
  in_range("k_len", k_len);
}

inline void check_window(const Window& window) {
  in_range("window.left", window.left, -1);
  in_range("window.right", window.right, -1);
}

// The offset d of causal and windows.
inline std::int64_t diagonal(std::int64_t q_len, std::int64_t k_len, std::int32_t alignment) {
  in_range("alignment", alignment, TILEWISE_BOTTOM_RIGHT, TILEWISE_TOP_LEFT);
  return alignment == TILEWISE_BOTTOM_RIGHT ? k_len - q_len : 0;
}

// The pairs (i, j) of a rectangle with i + lower <= j <= i + upper; absent: unbounded.
struct Band {
  std::int64_t q0;
  std::int64_t q1;
  std::int64_t k0;
  std::int64_t k1;
  std::optional<std::int64_t> lower = {};
  std::optional<std::int64_t> upper = {};
};

inline std::optional<std::int64_t> side(std::int64_t offset, std::int64_t keys, int sign) {
  return keys < 0 ? std::nullopt : std::optional(offset + sign * keys);
}

inline Band window_band(const Slice& rectangle, std::int64_t d, const Window& window) {
  return {rectangle.q0,
          rectangle.q1,
          rectangle.k0,
          rectangle.k1,
          side(d, window.left, -1),
          side(d, window.right, 1)};
}

inline void append(const Slice& slice, Slices& slices) {
  if (slice.q0 < slice.q1 && slice.k0 < slice.k1) slices.push_back(slice);
}

// Appends the fewest slices that show the band, at most three: its rows are cut where an edge
// leaves the rectangle.
inline void append(const Band& band, Slices& slices) {
  std::int64_t row = band.upper ? std::max(band.q0, band.k0 - *band.upper) : band.q0;
  const std::int64_t end = band.lower ? std::min(band.q1, band.k1 - *band.lower) : band.q1;
  if (row >= end || band.k0 >= band.k1) return;
  if (band.lower && band.upper && *band.lower > *band.upper) return;
  // There the lower edge meets k0, and moves in the rows after it; the upper edge meets k1, and
  // moves in the rows before it.
  const std::int64_t lower_row = band.lower ? band.k0 - *band.lower : end;
  const std::int64_t upper_row = band.upper ? band.k1 - 1 - *band.upper : row;
  while (row < end) {
    const bool lower_moves = row >= lower_row;
    const bool upper_moves = row < upper_row;
    std::int64_t stop = lower_moves ? end : std::min(end, lower_row + 1);
    if (upper_moves) stop = std::min(stop, upper_row + 1);
    slices.push_back({row, stop, lower_moves ? row + *band.lower : band.k0,
                      upper_moves ? stop + *band.upper : band.k1,
                      (upper_moves ? TILEWISE_SLICE_CAUSAL : TILEWISE_SLICE_FULL) |
                          (lower_moves ? TILEWISE_SLICE_INVERSE_CAUSAL : TILEWISE_SLICE_FULL)});
    row = stop;
  }
}

// Copies starts of sequences and the end. Throws if they do not ascend from 0.
template <class Numbers>
std::vector<std::int64_t> checked_starts(const std::string& name, const Numbers& numbers) {
  std::vector<std::int64_t> starts;
  for (const auto number : numbers) {
    const std::string place = name + "[" + std::to_string(starts.size()) + "]";
    if (starts.empty()) in_range(place, number, 0, 0);
    starts.push_back(in_range(place, number, starts.empty() ? 0 : starts.back()));
  }
  if (starts.empty()) {
    throw Error(TILEWISE_INVALID_ARGUMENT, name + ": is empty, must begin with 0");
  }
  return starts;
}

}  // namespace detail

// Returns the starts of sequences of the given lengths, and the end: cu_seqlens, of any container
// of whole numbers.
template <class Numbers>
std::vector<std::int64_t> starts_of(const Numbers& lengths) {
  std::vector<std::int64_t> starts = {0};
  for (const auto length : lengths) {
    const std::string place = "lengths[" + std::to_string(starts.size() - 1) + "]";
    detail::in_range(place, length, 0, detail::kMost - starts.back());
    starts.push_back(starts.back() + length);
  }
  return starts;
}

// A query sees the keys i + d - left <= j <= i + d + right. At most three slices: the rows whose
// window the first key cuts, those between, and those that the last key cuts.
inline Slices sliding_window(std::int64_t q_len, std::int64_t k_len, const Window& window,
                             std::int32_t alignment = TILEWISE_BOTTOM_RIGHT) {
  detail::check_lengths(q_len, k_len);
  detail::check_window(window);
  const std::int64_t d = detail::diagonal(q_len, k_len, alignment);
  Slices slices;
  detail::append(detail::window_band({0, q_len, 0, k_len}, d, window), slices);
  return slices;
}

// A query sees the keys j <= i + d. One slice; two for TILEWISE_TOP_LEFT with more queries than
// keys.
inline Slices causal(std::int64_t q_len, std::int64_t k_len,
                     std::int32_t alignment = TILEWISE_BOTTOM_RIGHT) {
  return sliding_window(q_len, k_len, {-1, 0}, alignment);
}

// Every query sees the first `prefix` keys; beyond them the mask is causal, bottom-right. Two
// slices; one if all queries or none are in the prefix.
inline Slices prefix_lm(std::int64_t q_len, std::int64_t k_len, std::int64_t prefix) {
  detail::check_lengths(q_len, k_len);
  detail::in_range("prefix", prefix, 0, k_len);
  // The rows whose causal keys are all in the prefix.
  const std::int64_t inside = std::clamp<std::int64_t>(prefix - (k_len - q_len), 0, q_len);
  Slices slices;
  detail::append(Slice{0, inside, 0, prefix}, slices);
  detail::append(Slice{inside, q_len, 0, k_len, TILEWISE_SLICE_CAUSAL}, slices);
  return slices;
}

struct DocumentOptions {
  bool causal = false;
  Window window = {};
  std::int32_t alignment = TILEWISE_BOTTOM_RIGHT;
};

// Packed documents: a query sees keys of its own document only, all or those that the options
// allow. cu_seqlens: starts of the documents and the end, in any container of whole numbers
// (starts_of() makes them of lengths). One slice a document that is not empty; with a window at
// most three.
template <class Queries, class Keys>
Slices documents(const Queries& cu_seqlens, const Keys& cu_seqlens_k,
                 const DocumentOptions& options) {
  const std::vector<std::int64_t> q = detail::checked_starts("cu_seqlens", cu_seqlens);
  const std::vector<std::int64_t> k = detail::checked_starts("cu_seqlens_k", cu_seqlens_k);
  if (q.size() != k.size()) {
    throw Error(TILEWISE_INVALID_ARGUMENT, "cu_seqlens_k: has " + std::to_string(k.size() - 1) +
                                               " documents, must have those of the queries, " +
                                               std::to_string(q.size() - 1));
  }
  Window window = options.window;
  if (options.causal) window.right = 0;
  detail::check_window(window);
  Slices slices;
  for (std::size_t b = 1; b < q.size(); ++b) {
    const std::int64_t d =
        detail::diagonal(q[b] - q[b - 1], k[b] - k[b - 1], options.alignment) + k[b - 1] - q[b - 1];
    detail::append(detail::window_band({q[b - 1], q[b], k[b - 1], k[b]}, d, window), slices);
  }
  return slices;
}

template <class Queries>
Slices documents(const Queries& cu_seqlens, const DocumentOptions& options = {}) {
  return documents(cu_seqlens, cu_seqlens, options);
}

// Blocks of tokens, such as the frames of a video: a query sees its own block and the `past` blocks
// before it, all of them if -1. One slice a block that is not empty.
template <class Numbers>
Slices block_causal(const Numbers& cu_seqlens, std::int64_t past = -1) {
  const std::vector<std::int64_t> starts = detail::checked_starts("cu_seqlens", cu_seqlens);
  detail::in_range("past", past, -1);
  const auto blocks = static_cast<std::int64_t>(starts.size()) - 1;
  const auto start = [&](std::int64_t block) { return starts[static_cast<std::size_t>(block)]; };
  Slices slices;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t first = past < 0 ? 0 : std::max<std::int64_t>(b - past, 0);
    detail::append(Slice{start(b), start(b + 1), start(first), start(b + 1)}, slices);
  }
  return slices;
}

// A question, then answers of the given lengths: each sees the question and itself, causally. One
// slice more than there are answers; one in all for one answer or none.
template <class Numbers>
Slices shared_question(std::int64_t question, const Numbers& answers) {
  detail::in_range("question", question);
  std::vector<std::int64_t> ends = {question};
  std::int64_t number = 0;
  for (const auto length : answers) {
    const std::string place = "answers[" + std::to_string(number++) + "]";
    detail::in_range(place, length, 0, detail::kMost - ends.back());
    if (length > 0) ends.push_back(ends.back() + length);
  }
  // The question and the first answer are one causal block.
  const std::int64_t first = ends[std::min<std::size_t>(1, ends.size() - 1)];
  Slices slices;
  detail::append(Slice{0, first, 0, first, TILEWISE_SLICE_CAUSAL}, slices);
  detail::append(Slice{first, ends.back(), 0, question}, slices);
  for (std::size_t a = 2; a < ends.size(); ++a) {
    detail::append(Slice{ends[a - 1], ends[a], ends[a - 1], ends[a], TILEWISE_SLICE_CAUSAL},
                   slices);
  }
  return slices;
}

// A sliding window, and the first `global_tokens` tokens, which see every token and are seen by
// every one. With causal no query sees a later key: the global tokens are what attention sinks
// are. At most five slices; with causal at most three.
inline Slices global_window(std::int64_t length, std::int64_t global_tokens, const Window& window,
                            bool causal = false) {
  detail::in_range("length", length);
  detail::in_range("global_tokens", global_tokens, 0, length);
  detail::check_window(window);
  Slices slices;
  if (!causal) {
    detail::append(Slice{0, global_tokens, 0, length}, slices);
    detail::append(Slice{global_tokens, length, 0, global_tokens}, slices);
    const Slice rest = {global_tokens, length, global_tokens, length};
    detail::append(detail::window_band(rest, 0, window), slices);
    return slices;
  }
  // The rows whose window reaches the global tokens are one causal block.
  const std::int64_t head =
      window.left < 0 ? length : std::min(length, global_tokens + window.left + 1);
  detail::append(Slice{0, head, 0, head, TILEWISE_SLICE_CAUSAL}, slices);
  detail::append(Slice{head, length, 0, global_tokens}, slices);
  const Slice rest = {head, length, global_tokens, length};
  detail::append(detail::window_band(rest, 0, {window.left, 0}), slices);
  return slices;
}

// A query sees every step-th key around its own: j = i + d + m * step for -left <= m <= right.
struct Dilation {
  std::int64_t left = 0;
  std::int64_t right = 0;
  std::int64_t step = 1;
};

// One slice for each m: a diagonal. A kernel visits every tile that one of them crosses.
inline Slices dilated(std::int64_t q_len, std::int64_t k_len, const Dilation& dilation,
                      std::int32_t alignment = TILEWISE_BOTTOM_RIGHT) {
  detail::check_lengths(q_len, k_len);
  detail::in_range("dilation.left", dilation.left);
  detail::in_range("dilation.right", dilation.right);
  detail::in_range("dilation.step", dilation.step, 1);
  const std::int64_t d = detail::diagonal(q_len, k_len, alignment);
  Slices slices;
  if (q_len == 0 || k_len == 0) return slices;
  // Beyond these no diagonal meets a pair.
  const std::int64_t least = std::max(-dilation.left, -((q_len - 1 + d) / dilation.step));
  const std::int64_t most = std::min(dilation.right, (k_len - 1 - d) / dilation.step);
  for (std::int64_t m = least; m <= most; ++m) {
    const std::int64_t offset = d + m * dilation.step;
    detail::append(detail::Band{0, q_len, 0, k_len, offset, offset}, slices);
  }
  return slices;
}

struct BlockSize {
  std::int64_t rows = 128;
  std::int64_t keys = 128;
};

// Blocks that are visible or not: visible(block row, block column) is a function. One slice for
// each run of visible blocks of a block row; equal runs of consecutive block rows are one slice.
template <class Visible>
Slices block_sparse(std::int64_t q_len, std::int64_t k_len, const BlockSize& block,
                    Visible visible) {
  detail::check_lengths(q_len, k_len);
  detail::in_range("block.rows", block.rows, 1);
  detail::in_range("block.keys", block.keys, 1);
  const std::int64_t columns = (k_len + block.keys - 1) / block.keys;
  Slices slices;
  Slices growing;  // the runs of the block row before, sorted by k0
  for (std::int64_t row = 0; row * block.rows < q_len; ++row) {
    Slices runs;
    for (std::int64_t begin = 0, end = 0; begin < columns; begin = end + 1) {
      for (end = begin; end < columns && visible(row, end);) ++end;
      const Slice run = {row * block.rows, std::min((row + 1) * block.rows, q_len),
                         begin * block.keys, std::min(end * block.keys, k_len)};
      if (begin < end) runs.push_back(run);
    }
    for (const Slice& before : growing) {
      const auto same = std::find_if(runs.begin(), runs.end(), [&](const Slice& run) {
        return run.k0 == before.k0 && run.k1 == before.k1;
      });
      if (same == runs.end()) {
        slices.push_back(before);
      } else {
        same->q0 = before.q0;
      }
    }
    growing = std::move(runs);
  }
  slices.insert(slices.end(), growing.begin(), growing.end());
  return slices;
}

// One list for each query head, as one list. As many slices as the lists have together.
inline Slices per_head(std::span<const Slices> lists) {
  Slices slices;
  for (std::size_t head = 0; head < lists.size(); ++head) {
    for (Slice slice : lists[head]) {
      slice.head = static_cast<std::int64_t>(head);
      slices.push_back(slice);
    }
  }
  return slices;
}

}  // namespace tilewise::masks

#endif  // TILEWISE_MASKS_HPP_
