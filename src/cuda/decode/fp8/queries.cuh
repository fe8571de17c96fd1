// Q of a segment beside K and V of fp8, as fp16 in shared memory.
//
// fp16 holds numbers of fp16 and fp8. Rows of bf16 and fp32 are multiplied by a power of two that
// brings their largest number to 2^14, and their products are multiplied by its inverse. fp16 then
// has all 8 bits of a bf16 down to 2^-31 of the row's largest number. What fp16 rounds off a number
// of fp32 is stored as a second part: both have 23 bits or more down to 2^-16 of the largest
// number, and below that an error of 2^-39 of it at most.
//
// Columns lie in the order of the operand K (key_operands.cuh).
#pragma once

#include "cuda/decode/row_store.cuh"
#include "cuda/decode/shared.cuh"
#include "cuda/tile/ldmatrix_tile.h"
#include "math/float8.h"

namespace tilewise::cuda::decode {

inline constexpr int kQueryNumbers = 16;  // that a thread loads at a time

template <class Element>
__device__ __forceinline__ void load_numbers(const void* data, std::int64_t offset,
                                             float (&numbers)[kQueryNumbers]) {
  const Element* const from = static_cast<const Element*>(data) + offset;
#pragma unroll
  for (int i = 0; i < kQueryNumbers; ++i) numbers[i] = math::load<float>(from[i]);
}
__device__ __forceinline__ void load_numbers(const problem::View& view, std::int64_t offset,
                                             float (&numbers)[kQueryNumbers]) {
  switch (view.dtype) {
    case TILEWISE_FP32:
      return load_numbers<float>(view.data, offset, numbers);
    case TILEWISE_BF16:
      return load_numbers<math::BFloat16>(view.data, offset, numbers);
    case TILEWISE_FP16:
      return load_numbers<math::Float16>(view.data, offset, numbers);
    case TILEWISE_E4M3:
      return load_numbers<math::Float8E4M3>(view.data, offset, numbers);
    default:
      return load_numbers<math::Float8E5M2>(view.data, offset, numbers);
  }
}

// A power of two and its inverse.
struct RowScaling {
  float factor = 1;
  float inverse = 1;
};

// The scaling that brings a row's largest finite number to at least 2^14, and less than 2^15. The
// kLanes lanes that hold the row call it together.
template <int kLanes>
__device__ __forceinline__ RowScaling row_scaling(const float (&numbers)[kQueryNumbers]) {
  constexpr std::uint32_t kTarget = 14;
  constexpr std::uint32_t kBias = 127;
  float largest = 0;
#pragma unroll
  for (const float x : numbers) {
    if (fabsf(x) < HUGE_VALF) largest = fmaxf(largest, fabsf(x));
  }
  for (int step = kLanes / 2; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  // Both exponents are those of normal numbers.
  const std::uint32_t exponent = math::max(__float_as_uint(largest) >> 23, kTarget + 1);
  return {__uint_as_float((2 * kBias + kTarget - exponent) << 23),
          __uint_as_float((exponent - kTarget) << 23)};
}

// Stores 16 columns of a row: `place` (two chunks of 16 bytes) and, with the part that is rounded
// off, `place_of_rest`.
__device__ __forceinline__ void store_numbers(const float (&numbers)[kQueryNumbers], float factor,
                                              uint4* const (&place)[2],
                                              uint4* const (&place_of_rest)[2]) {
  std::uint32_t words[2][4];
  std::uint32_t rest[2][4];
#pragma unroll
  for (int i = 0; i < kQueryNumbers / 2; ++i) {
    const float x = numbers[2 * i] * factor;
    const float y = numbers[2 * i + 1] * factor;
    const std::uint32_t pair = ptx::pack<true>(x, y);
    const auto rest_of = [&](float number, int which) {
      const float stored = ptx::unpack<true>(pair, which);
      return fabsf(stored) < HUGE_VALF ? number - stored : 0.0f;
    };
    words[i % 2][i / 2] = pair;
    rest[i % 2][i / 2] = ptx::pack<true>(rest_of(x, 0), rest_of(y, 1));
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    *place[i] = make_uint4(words[i][0], words[i][1], words[i][2], words[i][3]);
    *place_of_rest[i] = make_uint4(rest[i][0], rest[i][1], rest[i][2], rest[i][3]);
  }
}

// All threads of the block call it. Rows and columns that do not exist become zero.
template <KernelConfig kConfig>
__device__ __forceinline__ void load_fp8_queries(const Parameters& parameters,
                                                 Shared<kConfig>& shared) {
  using Layout = tile::LdmatrixTile<kConfig.columns>;
  constexpr int kLanes = kConfig.columns / kQueryNumbers;  // of a row
  static_assert(32 % kLanes == 0 && kConfig.rows() * kLanes % 32 == 0, "Whole warps have rows.");
  const Segment& segment = shared.segment;
  const problem::Problem& problem = parameters.problem;
  const bool is_wide = problem.q.dtype == TILEWISE_FP32 || problem.q.dtype == TILEWISE_BF16;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kConfig.rows() * kLanes; i += kConfig.threads()) {
    const int row = i / kLanes;
    const int column = i % kLanes * kQueryNumbers;
    const bool has_row = row < segment.rows;
    float numbers[kQueryNumbers] = {};
    if (has_row && column < problem.head_dim) {
      load_numbers(problem.q, result_offset(parameters, segment, problem.q, row) + column, numbers);
    }
    const RowScaling scaling = is_wide ? row_scaling<kLanes>(numbers) : RowScaling{};
    uint4* place[2];
    uint4* place_of_rest[2];
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      const std::int32_t offset = Layout::place(row, column / 8 + chunk);
      place[chunk] = reinterpret_cast<uint4*>(shared.q[0] + offset);
      place_of_rest[chunk] = reinterpret_cast<uint4*>(shared.q[1] + offset);
    }
    store_numbers(numbers, scaling.factor, place, place_of_rest);
    if (column != 0) continue;
    const std::int64_t token =
        segment.sequence.q_start + query_row(parameters, segment, has_row ? row : 0).query;
    shared.row_scales[row] = scaling.inverse * problem.descale(problem.q, segment.sequence.batch,
                                                               segment.kv_head, token);
  }
}

}  // namespace tilewise::cuda::decode
