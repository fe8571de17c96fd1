// Closed forms of the traffic that the kernels count, for `tilewise compare`: FlashAttention-2's,
// with the blocks that the kernels choose. Row statistics (LSE, delta, m, l) are left out on both
// sides, as in the papers. In elements, for one head with D = Dv, N queries and keys, without a
// mask:
//   forward   2 N D + 2 ceil(N / Br) N D, and (3 splits - 1) N D if the keys are split
//   backward  8 N D + 4 ceil(N / Bc) N D
//   decode    2 Sk D + (1 + splits) Sq D, and (4 splits - 2) Sq D of states if there are several
// Equal to what is counted, byte for byte: tests/registry/traffic_test.cc.
#pragma once

#include "cpu/backward_run.h"
#include "cpu/forward_run.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// False where the traffic depends on what is in the tensors, or bias and mask add to it.
TILEWISE_INLINE bool has_closed_form(const Problem& problem) {
  return !problem.q_packed && !problem.k_packed && !problem.slices.present() &&
         !problem.seqused_k.present() && !problem.mask.present() && !problem.bias.present();
}

// The one shape that all sequences and heads of a dense problem have.
struct DenseShape {
  Band band;
  HeadContext context;
  double per_head;  // how often what is done once for a head is done
  double per_kv_head;

  explicit DenseShape(const Problem& problem)
      : context{&problem, {}, 0, &band, 1},
        per_head(static_cast<double>(problem.batch) * static_cast<double>(problem.heads)),
        per_kv_head(static_cast<double>(problem.batch) * static_cast<double>(problem.kv_heads)) {
    context.sequence.q_len = problem.q_rows;
    context.sequence.k_len = problem.k_rows;
    context.sequence.diagonal = problem.top_left ? 0 : problem.k_rows - problem.q_rows;
    band = math::window_band(problem.q_rows, problem.k_rows, context.sequence.diagonal,
                             problem.window_left, problem.window_right);
  }
  DenseShape(const DenseShape&) = delete;
  DenseShape& operator=(const DenseShape&) = delete;
};

// Sum over the blocks of `rows` queries of the keys that they visit, from multiples of `grid` on.
TILEWISE_INLINE double keys_visited(const DenseShape& shape, std::int64_t rows, std::int64_t grid) {
  const std::int64_t q_len = shape.context.sequence.q_len;
  std::int64_t total = 0;
  for (std::int64_t first = 0; first < q_len; first += rows) {
    const math::KeyRange keys = keys_of_rows(shape.context, first, math::min(rows, q_len - first));
    total += math::max(keys.end - keys.begin / grid * grid, 0);
  }
  return static_cast<double>(total);
}

// Sum over the blocks of `keys` keys of the queries that they visit.
TILEWISE_INLINE double rows_visited(const DenseShape& shape, std::int64_t keys) {
  const std::int64_t k_len = shape.context.sequence.k_len;
  std::int64_t total = 0;
  for (std::int64_t first = 0; first < k_len; first += keys) {
    const math::KeyRange rows = rows_of_keys(shape.context, first, math::min(keys, k_len - first));
    total += math::max(rows.end - rows.begin, 0);
  }
  return static_cast<double>(total);
}

TILEWISE_INLINE double bytes_of(const View& view, std::int64_t width) {
  return static_cast<double>(row_bytes(view, width));
}

template <class T>
double decode_traffic(const Problem& problem) {
  const DenseShape shape(problem);
  if (problem.q_rows == 0) return 0;
  const math::KeyRange keys = decode_range(problem, shape.context.sequence);
  const double splits = static_cast<double>(split_count(keys.end - keys.begin));
  const double rows = shape.per_head * static_cast<double>(problem.q_rows);
  const double state = static_cast<double>(problem.value_dim) * sizeof(T);
  return shape.per_kv_head * static_cast<double>(keys.end - keys.begin) *
             (bytes_of(problem.k, problem.head_dim) + bytes_of(problem.v, problem.value_dim)) +
         rows * (splits * bytes_of(problem.q, problem.head_dim) +
                 bytes_of(problem.out, problem.value_dim) +
                 (splits > 1 ? (4 * splits - 2) * state : 0));
}

// Body: WideBody or PairBody.
template <class Body>
double forward_traffic(const Problem& problem, std::int64_t concurrency) {
  if (!has_closed_form(problem)) return __builtin_nan("");
  if (all_decoded(problem)) return decode_traffic<typename Body::Number>(problem);
  const DenseShape shape(problem);
  Arena measure(nullptr);
  const std::int64_t block_rows = Body::take(problem, concurrency, measure).rows;
  const double splits =
      static_cast<double>(forward_splits(problem, shape.context.sequence, Body::kSplitKeys).count);
  const double state = static_cast<double>(problem.value_dim) * sizeof(typename Body::Number);
  return shape.per_head *
         (keys_visited(shape, block_rows, Body::kKeyGrid) *
              (bytes_of(problem.k, problem.head_dim) + bytes_of(problem.v, problem.value_dim)) +
          static_cast<double>(problem.q_rows) *
              (splits * bytes_of(problem.q, problem.head_dim) +
               bytes_of(problem.out, problem.value_dim) + (splits > 1 ? 2 * splits * state : 0)));
}

// Keys: WideKeys or PairKeys.
template <class T, int kColumns, class Keys = WideKeys<T, kColumns>>
double backward_traffic(const Problem& problem, std::int64_t concurrency) {
  if (!has_closed_form(problem)) return __builtin_nan("");
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  const DenseShape shape(problem);
  Arena measure(nullptr);
  const BackwardWorkspace<T, Keys> workspace =
      take_backward<T, kWidth, Keys>(problem, concurrency, measure);
  const double q_rows = static_cast<double>(problem.q_rows);
  const double dout = bytes_of(problem.dout, problem.value_dim);
  const double sums =
      problem.dq.present() ? static_cast<double>(workspace.query_gradient.row) * sizeof(T) : 0;
  double bytes = shape.per_head * q_rows * (bytes_of(problem.out, problem.value_dim) + dout);
  if (needs_key_sweep(problem)) {
    const double rows = bytes_of(problem.q, problem.head_dim) + dout;
    constexpr double kCopies = Keys::kPackedCopies;
    bytes += shape.per_head * rows_visited(shape, workspace.panels * kWidth) *
             ((kCopies > 0 ? kCopies : 1) * rows + 2 * sums);
    if (kCopies > 0) bytes += shape.per_head * q_rows * (1 + kCopies) * rows;
    bytes += shape.per_kv_head * static_cast<double>(problem.k_rows) *
             (bytes_of(problem.k, problem.head_dim) + bytes_of(problem.v, problem.value_dim) +
              bytes_of(problem.dk, problem.head_dim) + bytes_of(problem.dv, problem.value_dim));
  }
  if (problem.dq.present())
    bytes += shape.per_head * q_rows * (sums + bytes_of(problem.dq, problem.head_dim));
  return bytes;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
