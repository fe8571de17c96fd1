#include "matmul.h"

#include <algorithm>
#include <memory>

namespace gpt {

// Each instruction set compiles matmul_kernel.cc into a namespace of its own.
namespace baseline {
template <class T>
TileKernel<T> tile_kernel();
}
#if defined(__x86_64__)
namespace avx2 {
template <class T>
TileKernel<T> tile_kernel();
}
namespace avx512 {
template <class T>
TileKernel<T> tile_kernel();
}
#endif

template <class T>
std::vector<TileKernel<T>> tile_kernels() {
  std::vector<TileKernel<T>> kernels;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) kernels.push_back(avx512::tile_kernel<T>());
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    kernels.push_back(avx2::tile_kernel<T>());
#endif
  kernels.push_back(baseline::tile_kernel<T>());
  return kernels;
}

template std::vector<TileKernel<float>> tile_kernels();
template std::vector<TileKernel<double>> tile_kernels();

namespace {

constexpr std::int64_t kDepth = 128;  // a packed panel of B, 128 x 32 floats = 16 KiB, stays in L1
constexpr std::int64_t kBlockRows = 8 * kTileRows;  // rows of C per work item: 24 KiB of packed A

// Packs the columns from `first` on of b (depth, N) as (depth, width); columns past the end are 0.
template <class T>
void pack_b(const Matrix<const T>& b, std::int64_t first, std::int64_t width, T* packed) {
  const std::int64_t present = std::min(width, b.columns - first);
  for (std::int64_t k = 0; k < b.rows; ++k) {
    T* row = packed + k * width;
    for (std::int64_t j = 0; j < present; ++j) row[j] = b.at(k, first + j);
    for (std::int64_t j = present; j < width; ++j) row[j] = T(0);
  }
}

// Packs the rows from `first` on of a (M, depth) as (depth, kTileRows); rows past the end are 0.
template <class T>
void pack_a(const Matrix<const T>& a, std::int64_t first, T* packed) {
  for (std::int64_t row = 0; row < kTileRows; ++row) {
    const bool present = first + row < a.rows;
    for (std::int64_t k = 0; k < a.columns; ++k)
      packed[k * kTileRows + row] = present ? a.at(first + row, k) : T(0);
  }
}

// Copies a computed tile (kTileRows, width) to c at (row0, column0), up to the end of c.
template <class T>
void store_tile(const T* tile, std::int64_t width, const Matrix<T>& c, std::int64_t row0,
                std::int64_t column0, Store store) {
  const std::int64_t rows = std::min(kTileRows, c.rows - row0);
  const std::int64_t columns = std::min(width, c.columns - column0);
  for (std::int64_t i = 0; i < rows; ++i) {
    T* out = c.data + (row0 + i) * c.row_stride + column0;
    const T* in = tile + i * width;
    if (store == Store::kAdd) {
      for (std::int64_t j = 0; j < columns; ++j) out[j] += in[j];
    } else {
      for (std::int64_t j = 0; j < columns; ++j) out[j] = in[j];
    }
  }
}

// Computes kBlockRows rows of c from row0 on: a (M, depth) times the packed panels of b.
template <class T>
void multiply_block(const TileKernel<T>& kernel, const Matrix<const T>& a, const T* packed_b,
                    const Matrix<T>& c, std::int64_t row0, Store store) {
  alignas(64) T packed_a[kBlockRows * kDepth];
  alignas(64) T tile[kTileRows * kMaxTileColumns];
  const std::int64_t depth = a.columns;
  const std::int64_t last = std::min(c.rows, row0 + kBlockRows);
  for (std::int64_t row = row0; row < last; row += kTileRows)
    pack_a(a, row, packed_a + (row - row0) * depth);
  for (std::int64_t column = 0; column < c.columns; column += kernel.columns) {
    for (std::int64_t row = row0; row < last; row += kTileRows) {
      kernel.run(depth, packed_a + (row - row0) * depth, packed_b + column * depth, tile);
      store_tile(tile, kernel.columns, c, row, column, store);
    }
  }
}

}  // namespace

template <class T>
void MatrixProduct<T>::operator()(const Matrix<const T>& a, const Matrix<const T>& b,
                                  const Matrix<T>& c, Store store) {
  constexpr std::size_t kAlignment = 64;
  const std::int64_t width = kernel_.columns;
  const std::int64_t panels = (c.columns + width - 1) / width;
  std::size_t bytes = static_cast<std::size_t>(panels * width * kDepth) * sizeof(T) + kAlignment;
  if (packed_b_.size() * sizeof(T) < bytes) packed_b_.resize(bytes / sizeof(T));
  void* aligned = packed_b_.data();
  T* packed = static_cast<T*>(std::align(kAlignment, bytes - kAlignment, aligned, bytes));

  for (std::int64_t k0 = 0; k0 < a.columns; k0 += kDepth) {
    const std::int64_t depth = std::min(kDepth, a.columns - k0);
    const Matrix<const T> a_slice = {&a.at(0, k0), a.rows, depth, a.row_stride, a.column_stride};
    const Matrix<const T> b_slice = {&b.at(k0, 0), depth, b.columns, b.row_stride, b.column_stride};
    compute_.parallel_for(panels, [&](std::int64_t panel) {
      pack_b(b_slice, panel * width, width, packed + panel * width * depth);
    });
    const Store block_store = k0 == 0 ? store : Store::kAdd;
    compute_.parallel_blocks(c.rows, kBlockRows, [&](std::int64_t row0, std::int64_t) {
      multiply_block(kernel_, a_slice, packed, c, row0, block_store);
    });
  }
}

template class MatrixProduct<float>;
template class MatrixProduct<double>;

}  // namespace gpt
