// Compiled once per instruction set: CMakeLists.txt defines GPT_TARGET (a name) and
// GPT_VECTOR_BYTES and sets the flags. No header with code is included, so that no shared inline
// function is compiled for a special instruction set.
#include "matmul_kernel.h"

namespace gpt::GPT_TARGET {
namespace {

template <class T>
void run_tile(std::int64_t depth, const T* a, const T* b, T* tile) {
  typedef T Vector __attribute__((vector_size(GPT_VECTOR_BYTES), may_alias));
  constexpr std::int64_t kLanes = GPT_VECTOR_BYTES / static_cast<std::int64_t>(sizeof(T));
  Vector left[kTileRows] = {};
  Vector right[kTileRows] = {};
  for (std::int64_t k = 0; k < depth; ++k) {
    const Vector b_left = *reinterpret_cast<const Vector*>(b + k * 2 * kLanes);
    const Vector b_right = *reinterpret_cast<const Vector*>(b + k * 2 * kLanes + kLanes);
#pragma GCC unroll 6
    for (std::int64_t row = 0; row < kTileRows; ++row) {
      left[row] += a[k * kTileRows + row] * b_left;
      right[row] += a[k * kTileRows + row] * b_right;
    }
  }
  for (std::int64_t row = 0; row < kTileRows; ++row) {
    *reinterpret_cast<Vector*>(tile + row * 2 * kLanes) = left[row];
    *reinterpret_cast<Vector*>(tile + row * 2 * kLanes + kLanes) = right[row];
  }
}

}  // namespace

#define GPT_STRING_(name) #name
#define GPT_STRING(name) GPT_STRING_(name)

template <class T>
TileKernel<T> tile_kernel() {
  return {GPT_STRING(GPT_TARGET), 2 * GPT_VECTOR_BYTES / static_cast<std::int64_t>(sizeof(T)),
          run_tile<T>};
}

template TileKernel<float> tile_kernel();
template TileKernel<double> tile_kernel();

}  // namespace gpt::GPT_TARGET
