// What the layouts of all fp32 kernels share. Plain functions of host and device.
#pragma once

#include "math/config.h"

namespace tilewise::cuda::fp32 {

inline constexpr int kVector = 4;   // floats of a load
inline constexpr int kPad = 4;      // floats after each row in shared memory
inline constexpr int kAcross = 16;  // threads that share rows of queries

// The row in which a tile stores key `key`, where each of the threads across has n adjacent keys;
// and the key of a row. Threads side by side then read adjacent rows.
TILEWISE_INLINE constexpr int key_row(int key, int n) { return key % n * kAcross + key / n; }
TILEWISE_INLINE constexpr int key_at(int row, int n) { return row % kAcross * n + row / kAcross; }

}  // namespace tilewise::cuda::fp32
