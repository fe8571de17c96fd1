// Loops over the rows of tensors in device memory: filling, copying, adding and rounding. A build
// without CUDA has these functions, too (absent.cc).
#pragma once

#include "problem/problem.h"
#include "problem/status.h"

namespace tilewise::cuda {

using problem::Status;

// The rows (batch, head, row) of a tensor, of `width` elements each. The column stride is 1, or any
// if `width` is 1.
struct RowExtents {
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t rows;
  std::int64_t width;
};

// Loads the kernels of the functions below, so that no run has to.
Status load_rows(std::int32_t device);

// Each starts a kernel on the stream. fill_rows: fp64 and fp32. copy_rows rounds to nearest even if
// the dtypes differ: from fp64 to fp32, or from fp32 to 16 bits. add_rows: to += from, both fp64 or
// both fp32.
Status fill_rows(std::int32_t device, const problem::View& view, const RowExtents& extents,
                 double value, void* stream);
Status copy_rows(std::int32_t device, const problem::View& from, const problem::View& to,
                 const RowExtents& extents, void* stream);
Status add_rows(std::int32_t device, const problem::View& from, const problem::View& to,
                const RowExtents& extents, void* stream);

}  // namespace tilewise::cuda
