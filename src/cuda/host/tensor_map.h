// Tensor maps: how the copy engine is told where a tensor lies (CUDA driver API,
// cuTensorMapEncodeTiled).
#pragma once

#include "cuda/forward/sm90/parameters.h"
#include "problem/status.h"

namespace tilewise::cuda::sm90 {

// A tensor of 16-bit numbers, (batch, heads, rows, columns) by its view.
struct Rows {
  const char* name;
  const problem::View& view;
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t rows;
  std::int64_t columns;
};

// TILEWISE_OK, or TILEWISE_UNSUPPORTED and what is in the way of a map: strides that are negative
// or no multiples of 16 bytes, sizes beyond 2^31. Does not look at the address.
problem::Status check_map(const Rows& tensor);

// Whether check_map() would say TILEWISE_OK.
bool has_map(const Rows& tensor);

// A map whose boxes are (tile_rows, 64), swizzled as tile/swizzle.h says. The address must be a
// multiple of 16.
problem::Status make_map(const Rows& tensor, int tile_rows, bool fp16, TensorMap* map);

// Looks for the driver's function; once, when a plan is made.
problem::Status find_encoder();

}  // namespace tilewise::cuda::sm90
