// Closed forms of the traffic that the kernels count, for `tilewise compare`: that of
// FlashAttention-2, with the block sizes of these kernels. Row statistics (LSE, delta, m, l) are
// left out on both sides, as in the papers. In elements, for one head with D = Dv and N queries and
// keys, without a mask:
//   forward   2 N D + 2 ceil(N / Br) N D, and (3 splits - 1) N D if the keys are split
//   backward  8 N D + 4 ceil(N / Bc) N D (backward/traffic.h)
//   decode    2 Sk D + (1 + splits) Sq D, and (4 splits - 2) Sq D of states if there are several
// They equal the counted traffic byte for byte (tests/registry/traffic_test.cc).
#pragma once

#include "cpu/forward/run.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

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

// Policy: SimdForward or AmxForward
template <class Policy>
double forward_traffic(const Problem& problem, std::int64_t concurrency) {
  if (!has_closed_form(problem)) return __builtin_nan("");
  if (all_decoded(problem)) return decode_traffic<typename Policy::Number>(problem);
  const DenseShape shape(problem);
  Arena measure(nullptr);
  const std::int64_t block_rows = Policy::take(problem, concurrency, measure).rows;
  const double splits = static_cast<double>(
      forward_splits(problem, shape.context.sequence, Policy::kSplitKeys).count);
  const double state = static_cast<double>(problem.value_dim) * sizeof(typename Policy::Number);
  return shape.per_head *
         (keys_visited(shape, block_rows, Policy::kKeyGrid) *
              (bytes_of(problem.k, problem.head_dim) + bytes_of(problem.v, problem.value_dim)) +
          static_cast<double>(problem.q_rows) *
              (splits * bytes_of(problem.q, problem.head_dim) +
               bytes_of(problem.out, problem.value_dim) + (splits > 1 ? 2 * splits * state : 0)));
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
