// Loops over the rows of tensors: filling, copying, adding and rounding.
#pragma once

#include "problem/kernel.h"
#include "problem/problem.h"

namespace tilewise::distributed {

// The sizes of a tensor that a problem::View addresses.
struct Extents {
  std::int64_t batch;  // 1 if the tensor is packed
  std::int64_t heads;
  std::int64_t rows;
  std::int64_t width;
};

// Sets every element to `value`; fp64 and fp32 only.
void fill_rows(const problem::View& view, const Extents& extents, double value,
               const tilewise_executor& executor);

// Copies every element, with rounding to nearest even if the dtypes differ. `from` is fp64 or fp32,
// or has the dtype of `to`.
void copy_rows(const problem::View& from, const problem::View& to, const Extents& extents,
               const tilewise_executor& executor);

// to += from, both fp64 or both fp32.
void add_rows(const problem::View& from, const problem::View& to, const Extents& extents,
              const tilewise_executor& executor);

}  // namespace tilewise::distributed
