// Tensor maps, which describe a tensor for TMA (CUDA driver API, cuTensorMapEncodeTiled).
#pragma once

#include <cuda.h>

#include <cstdint>
#include <initializer_list>

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

// A tensor of 16-bit numbers or of fp8, (batch, heads, rows, columns) by its view.
struct Rows {
  const char* name;
  const problem::View& view;
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t rows;
  std::int64_t columns;
};

// Checks that the tensor can have a map. Strides that are negative or no multiples of 16 bytes, and
// sizes beyond 2^31, are TILEWISE_UNSUPPORTED. The address is not checked.
problem::Status check_map(const Rows& tensor);

// Checks several tensors; returns the first failure.
problem::Status check_maps(std::initializer_list<Rows> tensors);

// A tensor on the side of the queries, or of the keys.
Rows q_side(const char* name, const problem::View& view, const problem::Problem& problem,
            std::int64_t columns);
Rows k_side(const char* name, const problem::View& view, const problem::Problem& problem,
            std::int64_t columns);

// Whether check_map() returns TILEWISE_OK.
bool has_map(const Rows& tensor);

// Makes a map with boxes of tile_rows rows and 128 bytes, swizzled as in tile/swizzle.h. The
// address must be a multiple of 16.
problem::Status make_map(const Rows& tensor, int tile_rows, TensorMap* map);

// Checks that the device is a Hopper GPU and that the driver makes maps.
problem::Status check_hopper(std::int32_t device_index);

}  // namespace tilewise::cuda::sm90
