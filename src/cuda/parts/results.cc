#include "cuda/parts/results.h"

#include "cuda/host/sequences.cuh"
#include "math/integer.h"

namespace tilewise::cuda::parts {
namespace {

using problem::Checked;
using problem::View;

// A contiguous array (batch, rows, heads, columns) in the dtype of sums.
View take_rows(const Problem& problem, problem::Arena& arena, std::int64_t batch, std::int64_t rows,
               std::int64_t heads, std::int64_t columns) {
  View view;
  view.dtype = problem.statistics;
  view.column = 1;
  view.head = columns;
  view.row = heads * columns;
  view.batch = rows * heads * columns;
  view.data = arena.take<char>(Checked{batch} * Checked{rows} * Checked{heads} * Checked{columns} *
                               Checked{problem::dtype_size(view.dtype)});
  return view;
}

// A contiguous array (shape). Dimensions of size 1 have the stride 0: a bias broadcasts there.
View take_array(const Problem& problem, problem::Arena& arena, const std::int64_t (&shape)[4]) {
  View view;
  view.dtype = problem.statistics;
  std::int64_t* const strides[] = {&view.batch, &view.head, &view.row, &view.column};
  std::int64_t stride = 1;
  for (int d = 3; d >= 0; --d) {
    *strides[d] = shape[d] == 1 ? 0 : stride;
    stride *= math::max(shape[d], 1);
  }
  view.data = arena.take<char>(Checked{shape[0]} * Checked{shape[1]} * Checked{shape[2]} *
                               Checked{shape[3]} * Checked{problem::dtype_size(view.dtype)});
  return view;
}

}  // namespace

Status check_parts(const Problem& problem) {
  if (!problem.parts.present()) return TILEWISE_OK;
  if (problem.dropout_p > 0) {
    return problem::fail(TILEWISE_UNSUPPORTED,
                         "dropout_p: given with parts, where only cuda_reference counts the rows "
                         "and keys of the whole");
  }
  const std::int64_t widest = math::max(problem.window_left, problem.window_right);
  if (widest < kMostWindowOfParts) return TILEWISE_OK;
  return problem::fail(TILEWISE_UNSUPPORTED, "window: is %lld with parts, must be below %lld",
                       static_cast<long long>(widest), static_cast<long long>(kMostWindowOfParts));
}

Results::Results(const Problem& problem, void* workspace) : part_(problem) {
  if (!problem.accumulate) return;
  problem::Arena arena(workspace);
  part_.accumulate = false;
  if (problem.operation == problem::Operation::kForward) {
    place_forward(arena);
  } else {
    place_backward(arena);
  }
  bytes_ = arena.bytes();
}

void Results::place_forward(problem::Arena& arena) {
  const std::int64_t batch = part_.q_packed ? 1 : part_.batch;
  part_.out = take_rows(part_, arena, batch, part_.q_rows, part_.heads, part_.value_dim);
  part_.lse = take_array(part_, arena, {batch, part_.heads, part_.q_rows, 1});
}

void Results::place_backward(problem::Arena& arena) {
  const std::int64_t q_batch = part_.q_packed ? 1 : part_.batch;
  const std::int64_t k_batch = part_.k_packed ? 1 : part_.batch;
  if (part_.dq.present())
    part_.dq = take_rows(part_, arena, q_batch, part_.q_rows, part_.heads, part_.head_dim);
  if (part_.dk.present())
    part_.dk = take_rows(part_, arena, k_batch, part_.k_rows, part_.kv_heads, part_.head_dim);
  if (part_.dv.present())
    part_.dv = take_rows(part_, arena, k_batch, part_.k_rows, part_.kv_heads, part_.value_dim);
  if (part_.dbias.present()) part_.dbias = take_array(part_, arena, part_.bias_shape);
  if (part_.dsink.present()) part_.dsink = take_array(part_, arena, {1, part_.heads, 1, 1});
  if (part_.dalibi_slopes.present()) {
    part_.dalibi_slopes =
        take_array(part_, arena, {part_.slopes_per_batch ? part_.batch : 1, part_.heads, 1, 1});
  }
}

}  // namespace tilewise::cuda::parts
