// The problem of one call of a kernel: views of the rank's tensors and of the workspace.
#pragma once

#include "distributed/ring_plan.h"

namespace tilewise::distributed {

// The arrays of a run, in the workspace; all null while the plan is made.
struct RingArrays {
  char* base = nullptr;

  RingArrays() = default;
  explicit RingArrays(void* workspace) : base(static_cast<char*>(workspace)) {}
  void* at(std::int64_t offset) const { return base != nullptr ? base + offset : nullptr; }
};

// Returns the array of a buffer, (rows, row_bytes(buffer)).
void* array_of(const RingPlan& plan, const RingArrays& arrays, Buffer buffer);

// The rank's outputs in the dtype of sums: tensors of the request, or, where these have another
// dtype or are absent, contiguous ones in the workspace.
struct Sums {
  tilewise_tensor out, lse, dq, dk, dv, dsink, dalibi_slopes;
};
Sums sums_of(const RingPlan& plan, const tilewise_problem& request, const RingArrays& arrays);

// Returns the keys or values of `rows` rows of an array of keys or gradients, as a tensor like k:
// (B, S, Hk, width), in the layout of the request, or (T, Hk, width).
struct Columns {
  std::int64_t first;  // of a row, in elements
  std::int64_t width;  // of a head
  std::int64_t row;    // elements of a row
};
tilewise_tensor rows_of_array(const RingPlan& plan, std::int32_t layout, void* array,
                              std::int32_t dtype, const Columns& columns, std::int64_t rows);

// The columns of K, V, dK and dV in the rows of their arrays.
struct Record {
  Columns k, v, dk, dv;
};
Record record_of(const RingPlan& plan);

// Returns the problem of a call of step `step`.
tilewise_problem call_problem(const RingPlan& plan, const tilewise_problem& request,
                              const RingArrays& arrays, std::size_t step, const Call& call);

// Returns a part of a tensor: `count` elements of one dimension from `first` on, `stride` apart.
tilewise_tensor slice(const tilewise_tensor& tensor, int dimension, std::int64_t first,
                      std::int64_t count, std::int64_t stride = 1);

}  // namespace tilewise::distributed
