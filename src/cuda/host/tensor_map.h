// Tensor maps: how TMA is told where a tensor lies (CUDA driver API,
// cuTensorMapEncodeTiled).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "problem/problem.h"
#include "problem/status.h"

namespace tilewise::cuda::sm90 {

// Factors, 0 or 1, from the numbers of a head and of a sequence to coordinates of a tensor map: an
// expanded dimension (stride 0) has one element in the map.
struct CoordScale {
  std::int32_t head;
  std::int32_t batch;
};

// A tensor as TMA sees it.
struct TensorMap {
  CUtensorMap map;
  CoordScale coords;
};

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
