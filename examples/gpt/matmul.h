// Matrix products: C = A B or C += A B, for matrices with any strides (so transposes are views).
#pragma once

#include <cstdint>
#include <vector>

#include "compute.h"
#include "matmul_kernel.h"

namespace gpt {

template <class T>
struct Matrix {  // (rows, columns)
  T* data;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t row_stride;  // in elements
  std::int64_t column_stride = 1;

  T& at(std::int64_t row, std::int64_t column) const {
    return data[row * row_stride + column * column_stride];
  }
};

template <class T>
Matrix<T> matrix(T* data, std::int64_t rows, std::int64_t columns) {
  return {data, rows, columns, columns};
}

template <class T>
Matrix<T> transposed(const Matrix<T>& m) {
  return {m.data, m.columns, m.rows, m.column_stride, m.row_stride};
}

// Returns the kernels that this machine can run, best first; never empty.
template <class T>
std::vector<TileKernel<T>> tile_kernels();

enum class Store { kReplace, kAdd };

// Multiplies matrices with all threads. It owns the scratch memory, so each thread that multiplies
// at the same time needs one. Every element of C is summed in one fixed order for any number of
// threads.
template <class T>
class MatrixProduct {
 public:
  explicit MatrixProduct(const Compute& compute)
      : MatrixProduct(compute, tile_kernels<T>().front()) {}
  MatrixProduct(const Compute& compute, const TileKernel<T>& kernel)
      : compute_(compute), kernel_(kernel) {}

  // Computes c (M, N) = or += a (M, K) times b (K, N). The column stride of c is 1; K >= 1; c
  // overlaps neither a nor b.
  void operator()(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& c,
                  Store store);

 private:
  const Compute& compute_;
  TileKernel<T> kernel_;
  std::vector<T> packed_b_;
};

}  // namespace gpt
