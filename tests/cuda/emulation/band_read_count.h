// How many bands the kernels have read from global memory.
#pragma once

#include <cstdint>

namespace tilewise::emulation {

inline std::int64_t band_reads = 0;

}  // namespace tilewise::emulation
