#include "problem/sequence.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace tilewise::problem {
namespace {

using math::clamp;

struct Extent {
  std::int64_t start;
  std::int64_t length;
  std::int64_t end;  // where the next sequence may start
};

// Returns the rows of sequence `b` of a packed side, given the end of the previous one.
Extent packed_extent(const IndexView& cu_seqlens, std::int64_t b, std::int64_t previous_end,
                     std::int64_t rows, std::int64_t max_length) {
  const std::int64_t start = clamp(cu_seqlens.at(b), previous_end, rows);
  const std::int64_t end = clamp(cu_seqlens.at(b + 1), start, rows);
  return {start, math::min(end - start, max_length), end};
}

void fill_row(const View& view, std::int64_t offset, std::int64_t count, double value) {
  const std::int64_t size = dtype_size(view.dtype);
  char* row = static_cast<char*>(view.data) + offset * size;
  if (value == 0) {
    std::memset(row, 0, static_cast<std::size_t>(count * size));
    return;
  }
  for (std::int64_t c = 0; c < count; ++c) {
    if (view.dtype == TILEWISE_FP64) {
      reinterpret_cast<double*>(row)[c] = value;
    } else {
      reinterpret_cast<float*>(row)[c] = static_cast<float>(value);
    }
  }
}

// Fills the rows [begin, end) of every head.
void fill_rows(const View& view, std::int64_t b, std::int64_t heads, math::KeyRange rows,
               std::int64_t columns, double value) {
  if (!view.present()) return;
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r)
      fill_row(view, view.offset(b, h, r), columns, value);
  }
}

// Sets out = 0 in those of the rows that are empty.
void clear_empty_rows(const Problem& problem, std::int64_t b, math::KeyRange rows) {
  for (std::int64_t h = 0; h < problem.heads; ++h) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const std::int64_t at = problem.lse.offset(b, h, r);
      const double lse = problem.lse.dtype == TILEWISE_FP64
                             ? static_cast<const double*>(problem.lse.data)[at]
                             : static_cast<const float*>(problem.lse.data)[at];
      if (lse == -std::numeric_limits<double>::infinity())
        fill_row(problem.out, problem.out.offset(b, h, r), problem.value_dim, 0);
    }
  }
}

void fill_query_rows(const Problem& problem, std::int64_t b, math::KeyRange rows) {
  if (problem.accumulate) {
    if (problem.operation == Operation::kForward) clear_empty_rows(problem, b, rows);
    return;
  }
  if (problem.operation == Operation::kForward) {
    fill_rows(problem.out, b, problem.heads, rows, problem.value_dim, 0);
    fill_rows(problem.lse, b, problem.heads, rows, 1, -std::numeric_limits<double>::infinity());
  } else {
    fill_rows(problem.dq, b, problem.heads, rows, problem.head_dim, 0);
  }
}

void fill_key_rows(const Problem& problem, std::int64_t b, math::KeyRange rows) {
  if (problem.operation == Operation::kForward || problem.accumulate) return;
  fill_rows(problem.dk, b, problem.kv_heads, rows, problem.head_dim, 0);
  fill_rows(problem.dv, b, problem.kv_heads, rows, problem.value_dim, 0);
}

// Returns d of a sequence in its own coordinates.
std::int64_t diagonal_of(const Problem& problem, std::int64_t b, std::int64_t q_len,
                         std::int64_t k_len) {
  if (problem.parts.present()) return problem::diagonal_of(part_of(problem, b));
  return problem.top_left ? 0 : k_len - q_len;
}

}  // namespace

void fill_sequences(const Problem& problem, Sequence* table) {
  std::int64_t q_end = 0;
  std::int64_t k_end = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    Extent q = {0, problem.q_rows, 0};
    Extent k = {0, problem.k_rows, 0};
    if (problem.cu_seqlens_q.present()) {
      q = packed_extent(problem.cu_seqlens_q, b, q_end, problem.q_rows, problem.max_q);
      q_end = q.end;
    }
    if (problem.cu_seqlens_k.present()) {
      k = packed_extent(problem.cu_seqlens_k, b, k_end, problem.k_rows, problem.max_k);
      k_end = k.end;
    }
    if (problem.seqused_q.present()) q.length = clamp(problem.seqused_q.at(b), 0, q.length);
    if (problem.seqused_k.present()) k.length = clamp(problem.seqused_k.at(b), 0, k.length);
    table[b] = {b,       q.start,  q.length,
                k.start, k.length, diagonal_of(problem, b, q.length, k.length)};
  }
}

void fill_unowned_rows(const Problem& problem, const Sequence* table) {
  std::int64_t q_next = 0;  // first row of a packed side that no sequence has covered yet
  std::int64_t k_next = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence& sequence = table[b];
    if (problem.q_packed) {
      fill_query_rows(problem, 0, {q_next, sequence.q_start});
      q_next = sequence.q_start + sequence.q_len;
    } else {
      fill_query_rows(problem, b, {sequence.q_len, problem.q_rows});
    }
    if (problem.k_packed) {
      fill_key_rows(problem, 0, {k_next, sequence.k_start});
      k_next = sequence.k_start + sequence.k_len;
    } else {
      fill_key_rows(problem, b, {sequence.k_len, problem.k_rows});
    }
  }
  if (problem.q_packed) fill_query_rows(problem, 0, {q_next, problem.q_rows});
  if (problem.k_packed) fill_key_rows(problem, 0, {k_next, problem.k_rows});
}

std::int64_t max_bands(const Problem& problem) {
  return problem.slices.present() ? math::max(problem.slices.count, 1) : 1;
}

std::int64_t sequence_bands(const Problem& problem, const Sequence& sequence, std::int64_t head,
                            math::Band* bands) {
  if (!problem.slices.present()) {
    bands[0] = math::window_band(sequence.q_len, sequence.k_len, sequence.diagonal,
                                 problem.window_left, problem.window_right);
    return 1;
  }
  std::int64_t count = 0;
  for (std::int64_t s = 0; s < problem.slices.count; ++s) {
    const std::int64_t slice_head = problem.slices.columns == 6 ? problem.slices.at(s, 5) : -1;
    if (slice_head != -1 && slice_head != head) continue;
    std::int64_t slice[5];
    for (std::int64_t c = 0; c < 5; ++c) slice[c] = problem.slices.at(s, c);
    bands[count++] = math::slice_band(slice, problem.q_rows, problem.k_rows, sequence.k_len);
  }
  return count;
}

}  // namespace tilewise::problem
