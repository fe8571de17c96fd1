// The closed form of the traffic of the backward pass (see forward/traffic.h).
#pragma once

#include "cpu/backward/run.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Policy: SimdBackward, Avx512Bf16Backward or AmxBackward
template <class T, int kColumns, class Policy = SimdBackward<T, kColumns>>
double backward_traffic(const Problem& problem, std::int64_t concurrency) {
  if (!has_closed_form(problem)) return __builtin_nan("");
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  const DenseShape shape(problem);
  Arena measure(nullptr);
  const BackwardWorkspace<T, Policy> workspace =
      take_backward<T, kWidth, Policy>(problem, concurrency, measure);
  const double q_rows = static_cast<double>(problem.q_rows);
  const double dout = bytes_of(problem.dout, problem.value_dim);
  const double sums =
      problem.dq.present() ? static_cast<double>(workspace.query_gradient.row) * sizeof(T) : 0;
  double bytes = shape.per_head * q_rows * (bytes_of(problem.out, problem.value_dim) + dout);
  if (needs_key_sweep(problem)) {
    const double rows = bytes_of(problem.q, problem.head_dim) + dout;
    constexpr double kCopies = Policy::kPackedCopies;
    bytes += shape.per_head * rows_visited(shape, workspace.panels * kWidth) *
             ((kCopies > 0 ? kCopies : 1) * rows + 2 * sums);
    if (kCopies > 0) bytes += shape.per_head * q_rows * (1 + kCopies) * rows;
    bytes += shape.per_kv_head * keys_in_seen_blocks(shape, workspace.panels * kWidth) *
             (bytes_of(problem.k, problem.head_dim) + bytes_of(problem.v, problem.value_dim));
    bytes += shape.per_kv_head * static_cast<double>(problem.k_rows) *
             (bytes_of(problem.dk, problem.head_dim) + bytes_of(problem.dv, problem.value_dim));
  }
  if (problem.dq.present())
    bytes += shape.per_head * q_rows * (sums + bytes_of(problem.dq, problem.head_dim));
  return bytes;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
