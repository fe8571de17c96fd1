// The innermost loop of every matrix product: one tile of C from packed panels of A and B. It is
// compiled once per instruction set (matmul_kernel.cc); the program chooses one when it starts.
#pragma once

#include <cstdint>

namespace gpt {

// Rows of a tile. With two vectors per row there are 12 accumulators: at least latency x ports of
// any current x86 (4 x 2 to 5 x 2), and few enough for 16 registers.
inline constexpr std::int64_t kTileRows = 6;
inline constexpr std::int64_t kMaxTileColumns = 32;

template <class T>
struct TileKernel {
  const char* target;
  std::int64_t columns;  // of a tile: two vectors
  // Computes tile (kTileRows, columns) = a (depth, kTileRows) transposed times b (depth, columns).
  // All are contiguous, b and tile are aligned to 64 bytes. Sums run over depth in order.
  void (*run)(std::int64_t depth, const T* a, const T* b, T* tile);
};

}  // namespace gpt
