// The products of the backward pass with multiply-adds, on tiles of shared memory. layout.h says
// which rows and columns a thread has.
#pragma once

#include "cuda/backward/fp32/layout.h"
#include "cuda/fp32/vector.cuh"

namespace tilewise::cuda::backward::fp32 {

using cuda::fp32::add_product;
using cuda::fp32::add_vector;
using cuda::fp32::load_vector;

// C = A B^T for S = Q K^T and dP = dO V^T: the rows of both tiles have kStride floats, of which
// `summed` are summed. C (rows, columns) of the thread.
template <class Tile, int kStride>
__device__ __forceinline__ void multiply_rows(const float* a_tile, const float* b_tile,
                                              std::int32_t summed,
                                              float (&c)[Tile::kRows * Tile::kColumns]) {
  const int thread = static_cast<int>(threadIdx.x);
  const float* a = a_tile + Tile::row(thread, 0) * kStride;
  const float* b = b_tile + Tile::across(thread) * kStride;
  const float* const end = a + summed;
#pragma unroll
  for (float& x : c) x = 0;
#pragma unroll 2
  for (; a < end; a += kVector, b += kVector) {
    float4 columns[Tile::kColumns];
#pragma unroll
    for (int n = 0; n < Tile::kColumns; ++n) columns[n] = load_vector(b + n * kAcross * kStride);
#pragma unroll
    for (int i = 0; i < Tile::kRows; ++i) {
      const float4 row = load_vector(a + i * kLaneRows * kStride);
#pragma unroll
      for (int n = 0; n < Tile::kColumns; ++n)
        add_product(row, columns[n], c[i * Tile::kColumns + n]);
    }
  }
}

// C += A^T B for dV += P^T dO and dK += dS^T Q: A (kSummed, kAStride), B (kSummed, kBStride). The
// products of a tile are summed on their own before C takes them: beside a large sum small terms
// lose digits. kSumRuns runs of columns are summed at a time.
template <class Tile, int kAStride, int kBStride, int kSummed, int kSumRuns>
__device__ __forceinline__ void add_transposed(const float* a_tile, const float* b_tile,
                                               float (&c)[Tile::kRows][Tile::kColumns]) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int m = 0; m < Tile::kColumnRuns; m += kSumRuns) {
    const float* a = a_tile + Tile::row_run(thread, 0);
    const float* b = b_tile + Tile::column_run(thread, m);
    float sums[Tile::kRows][kSumRuns * kVector] = {};
#pragma unroll 4
    for (int s = 0; s < kSummed; ++s, a += kAStride, b += kBStride) {
      float4 columns[kSumRuns];
#pragma unroll
      for (int n = 0; n < kSumRuns; ++n) columns[n] = load_vector(b + n * kLaneColumns * kVector);
#pragma unroll
      for (int i = 0; i < Tile::kRowRuns; ++i) {
        const float4 rows = load_vector(a + i * kLaneRows * kVector);
#pragma unroll
        for (int n = 0; n < kSumRuns; ++n) {
          add_vector(rows.x, columns[n], &sums[i * kVector][n * kVector]);
          add_vector(rows.y, columns[n], &sums[i * kVector + 1][n * kVector]);
          add_vector(rows.z, columns[n], &sums[i * kVector + 2][n * kVector]);
          add_vector(rows.w, columns[n], &sums[i * kVector + 3][n * kVector]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < Tile::kRows; ++i) {
#pragma unroll
      for (int n = 0; n < kSumRuns * kVector; ++n) c[i][m * kVector + n] += sums[i][n];
    }
  }
}

// C = A B for dQ = dS K: A (rows, kAStride), B (kSummed, kBStride).
template <class Tile, int kAStride, int kBStride, int kSummed>
__device__ __forceinline__ void multiply(const float* a_tile, const float* b_tile,
                                         float (&c)[Tile::kRows][Tile::kColumns]) {
  const int thread = static_cast<int>(threadIdx.x);
  const float* a = a_tile + Tile::row(thread, 0) * kAStride;
  const float* b = b_tile + Tile::column_run(thread, 0);
#pragma unroll
  for (auto& row : c) {
#pragma unroll
    for (float& x : row) x = 0;
  }
#pragma unroll 2
  for (int s = 0; s < kSummed; s += kVector, a += kVector, b += kVector * kBStride) {
    float rows[Tile::kRows][kVector];
#pragma unroll
    for (int i = 0; i < Tile::kRows; ++i) {
      const float4 four = load_vector(a + i * kLaneRows * kAStride);
      rows[i][0] = four.x, rows[i][1] = four.y;
      rows[i][2] = four.z, rows[i][3] = four.w;
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
#pragma unroll
      for (int m = 0; m < Tile::kColumnRuns; ++m) {
        const float4 columns = load_vector(b + j * kBStride + m * kLaneColumns * kVector);
#pragma unroll
        for (int i = 0; i < Tile::kRows; ++i) add_vector(rows[i][j], columns, &c[i][m * kVector]);
      }
    }
  }
}

}  // namespace tilewise::cuda::backward::fp32
