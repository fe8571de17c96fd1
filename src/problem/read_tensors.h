// Reads the tensors of a request as views: every layout becomes strides over (batch, head, row). A
// tensor of another shape, dtype or innermost stride is refused by name.
#pragma once

#include "problem/problem.h"
#include "problem/status.h"

namespace tilewise::problem {

// The sizes of a q-, k- or v-like tensor: dense (B, S, heads, width) in the problem's layout, or
// packed (T, heads, width).
struct Sides {
  std::int64_t batch;  // -1 when packed
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t width;
};

Sides sides_of(const tilewise_tensor& tensor, std::int32_t layout);

// A view of a q-, k- or v-like tensor, whose shape has been checked.
View row_view(const tilewise_tensor& tensor, std::int32_t layout);

// Reads an optional tensor shaped like q (query_side) or k, with `width` columns.
Status read_rows(const tilewise_problem& request, const Problem& problem, const char* name,
                 const tilewise_tensor& tensor, bool query_side, std::int64_t width, View* view);

// Reads an optional lse or dLSE: (B, H, Sq), packed (H, T).
Status read_statistics(const Problem& problem, const char* name, const tilewise_tensor& tensor,
                       View* view);

// Reads mask or bias, broadcast from the right to (B, H, Sq, Sk). extents: its shape as that of a
// 4-dimensional tensor.
Status read_scores(const Problem& problem, const char* name, const tilewise_tensor& tensor,
                   std::int64_t extents[4], View* view);

// Reads an optional vector of `count` integers.
Status read_index(const char* name, const tilewise_tensor& tensor, std::int64_t count,
                  IndexView* view);

// Reads the optional tensor `parts`, (B, 4) int64. The slices of the problem must have been read.
Status read_parts(const tilewise_tensor& tensor, const Problem& problem, IndexView* view);

}  // namespace tilewise::problem
