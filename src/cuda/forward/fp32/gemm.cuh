// The two products of attention in fp32, with multiply-adds: S = Q K^T and O += P V. layout.h says
// which rows, keys and columns a thread has.
#pragma once

#include <type_traits>

#include "cuda/forward/fp32/layout.h"
#include "cuda/forward/fp32/shared.cuh"
#include "cuda/fp32/vector.cuh"
#include "cuda/tile/non_finite.cuh"

namespace tilewise::cuda::fp32 {

__device__ __forceinline__ int warp_row() { return static_cast<int>(threadIdx.x) / 32 * kWarpRows; }

// Adds the non-finite elements of a vector of V, if the row sees the key (visible is not 0).
__device__ __forceinline__ void add_non_finite(float visible, const float4& value, float* sum) {
  const auto add = [visible](float x, float& to) {
    if (visible != 0 && tile::is_non_finite(x)) to += x;
  };
  add(value.x, sum[0]);
  add(value.y, sum[1]);
  add(value.z, sum[2]);
  add(value.w, sum[3]);
}

template <KernelConfig kConfig>
class Gemm {
 public:
  static constexpr int kKeys = kConfig.thread_keys();
  static constexpr int kScores = kThreadRows * kKeys;
  static constexpr int kColumns = kConfig.thread_columns();
  static constexpr int kRuns = kColumns / kVector;  // of adjacent columns of out
  static constexpr int kRow = kConfig.row();
  static constexpr int kChunkRow = kConfig.chunk_row();
  static constexpr int kTile = kConfig.k_tile;
  static constexpr int kSumRuns = kConfig.sum_runs();
  static constexpr int kSumColumns = kSumRuns * kVector;
  static constexpr int kSumKeys = kConfig.sum_keys();

  // S = Q K^T, four columns of both at a time. `columns` is D.
  __device__ __forceinline__ static void multiply_qk(const Shared<kConfig>& shared,
                                                     std::int32_t columns,
                                                     float (&scores)[kScores]) {
    const int lane = threadIdx.x % 32;
    const float* q = shared.q + (warp_row() + lane_row(lane, 0)) * kRow;
    const float* k = shared.k + lane_across(lane) * kRow;
    const float* const end = q + columns;
#pragma unroll
    for (float& x : scores) x = 0;
#pragma unroll 2
    for (; q < end; q += kVector, k += kVector) {
      float4 keys[kKeys];
#pragma unroll
      for (int n = 0; n < kKeys; ++n) keys[n] = load_vector(k + n * kAcross * kRow);
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        const float4 query = load_vector(q + 2 * i * kRow);
#pragma unroll
        for (int n = 0; n < kKeys; ++n) add_product(query, keys[n], scores[i * kKeys + n]);
      }
    }
  }

  // O += P V. The lanes of the warp exchange a chunk of keys of P at a time through shared memory
  // that belongs to the warp. The products of 32 keys are summed on their own before out takes
  // them: beside a large sum small terms lose digits, and where all values are positive, each of
  // them in the same direction. With VisibleKeys in place of P: adds the non-finite elements of V
  // to the rows that see them.
  template <class Probs>
  __device__ __forceinline__ static void multiply_pv(Shared<kConfig>& shared, const Probs& probs,
                                                     float (&out)[kThreadRows][kColumns]) {
    constexpr int kChunk = kConfig.chunk;
    float* const memory = shared.probs + warp_row() * kChunkRow;
#pragma unroll 1
    for (int chunk = 0; chunk < kTile; chunk += kChunk) {
      __syncwarp();
      store_probs(probs, chunk, memory);
      __syncwarp();
      const float* const values = shared.v + chunk * kConfig.columns;
      if constexpr (std::is_same_v<Probs, VisibleKeys<kScores>>) {
        add_non_finite_of_chunk(memory, values, out);
      } else {
        multiply_chunk(memory, values, out);
      }
    }
  }

 private:
  // Stores the probs of the keys [chunk, chunk + kChunk) of the tile.
  template <class Probs>
  __device__ __forceinline__ static void store_probs(const Probs& probs, int chunk, float* memory) {
    const int lane = threadIdx.x % 32;
    const int first = lane_across(lane) * kKeys - chunk;
    if (first < 0 || first >= kConfig.chunk) return;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      float* const to = memory + lane_row(lane, i) * kChunkRow + first;
#pragma unroll
      for (int n = 0; n < kKeys; ++n) to[n] = probs[i * kKeys + n];
    }
  }

  __device__ __forceinline__ static void multiply_chunk(const float* memory, const float* values,
                                                        float (&out)[kThreadRows][kColumns]) {
    const int lane = threadIdx.x % 32;
    const float* const own_probs = memory + lane_row(lane, 0) * kChunkRow;
    const float* const own_values = values + lane_run(lane, 0);
#pragma unroll 1
    for (int key = 0; key < kConfig.chunk; key += kSumKeys) {
#pragma unroll
      for (int m = 0; m < kRuns; m += kSumRuns) {
        float sums[kThreadRows][kSumColumns] = {};
        multiply_runs(own_probs + key, own_values + key * kConfig.columns + m * kAcross * kVector,
                      sums);
#pragma unroll
        for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
          for (int c = 0; c < kSumColumns; ++c) out[i][m * kVector + c] += sums[i][c];
        }
      }
    }
  }

  // Adds the products of kSumKeys keys to sums of kSumRuns runs of columns.
  __device__ __forceinline__ static void multiply_runs(const float* own_probs,
                                                       const float* own_values,
                                                       float (&sums)[kThreadRows][kSumColumns]) {
#pragma unroll(kSumKeys == kMaxSumKeys ? 2 : 1)
    for (int key = 0; key < kSumKeys; key += kVector) {
      float probs[kThreadRows][kVector];
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        const float4 four = load_vector(own_probs + 2 * i * kChunkRow + key);
        probs[i][0] = four.x, probs[i][1] = four.y;
        probs[i][2] = four.z, probs[i][3] = four.w;
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
#pragma unroll
        for (int m = 0; m < kSumRuns; ++m) {
          const float4 value =
              load_vector(own_values + (key + j) * kConfig.columns + m * kAcross * kVector);
#pragma unroll
          for (int i = 0; i < kThreadRows; ++i) {
            add_vector(probs[i][j], value, &sums[i][m * kVector]);
          }
        }
      }
    }
  }

  // The same for visible keys, one at a time: it needs few registers.
  __device__ __forceinline__ static void add_non_finite_of_chunk(
      const float* memory, const float* values, float (&out)[kThreadRows][kColumns]) {
    const int lane = threadIdx.x % 32;
    const float* own_visible = memory + lane_row(lane, 0) * kChunkRow;
    const float* own_values = values + lane_run(lane, 0);
#pragma unroll 1
    for (int key = 0; key < kConfig.chunk; ++key, ++own_visible, own_values += kConfig.columns) {
#pragma unroll
      for (int m = 0; m < kRuns; ++m) {
        const float4 value = load_vector(own_values + m * kAcross * kVector);
#pragma unroll
        for (int i = 0; i < kThreadRows; ++i)
          add_non_finite(own_visible[2 * i * kChunkRow], value, &out[i][m * kVector]);
      }
    }
  }
};

}  // namespace tilewise::cuda::fp32
