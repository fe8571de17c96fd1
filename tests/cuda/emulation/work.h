// The work that the kernels have done, in the units that limit them.
#pragma once

#include <cstdint>

namespace tilewise::emulation {

struct Work {
  std::int64_t multiply_adds;  // of the tensor cores
  std::int64_t copied_bytes;   // to shared memory, by cp.async and TMA
  std::int64_t exponentials;   // by ex2.approx
};

inline Work work = {};

}  // namespace tilewise::emulation
