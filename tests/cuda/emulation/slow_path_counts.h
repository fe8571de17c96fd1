// How often the kernels have taken each slow path.
#pragma once

#include <cstdint>

#include "cuda/tile/slow_path.h"

namespace tilewise::emulation {

inline std::int64_t slow_path_counts[cuda::tile::kSlowPaths] = {};

inline std::int64_t& slow_path_count(cuda::tile::SlowPath path) {
  return slow_path_counts[static_cast<int>(path)];
}

}  // namespace tilewise::emulation
