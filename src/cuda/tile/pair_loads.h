// Whether columns of the boolean mask and of the bias may be read two at a time, which the host
// finds out.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "problem/problem.h"

namespace tilewise::cuda::tile {

// Whether columns 2 n and 2 n + 1 of the boolean mask, or of the bias, lie next to each other in
// memory and are aligned to the size of the pair.
struct PairLoads {
  bool mask;
  bool bias;
};

inline bool can_load_pairs(const problem::View& view) {
  if (!view.present() || view.column != 1) return false;
  for (const std::int64_t stride : {view.batch, view.head, view.row}) {
    if (stride % 2 != 0) return false;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  return address % (2 * static_cast<std::uintptr_t>(problem::dtype_size(view.dtype))) == 0;
}

inline PairLoads pair_loads_of(const problem::Problem& problem) {
  return {can_load_pairs(problem.mask), can_load_pairs(problem.bias)};
}

}  // namespace tilewise::cuda::tile
