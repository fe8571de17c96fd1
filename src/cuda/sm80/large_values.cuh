// V close to the largest finite number. P V before the division by the row sums may then exceed
// fp32, although out does not. A block whose V is that large multiplies its probs by 2^-s, where s
// makes a row's sum of probs less than 1/2: s is added to the anchors, and the division by the row
// sum removes the factor again. fp16 ends at 2^16, so that its sums cannot become that large.
//
// A block samples one row of V before it begins. Where the sample misses large numbers, out ends as
// infinity or NaN in a row with a finite sum, and the block computes its tile a second time.
#pragma once

#include "cuda/sm80/shared.cuh"
#include "cuda/tile/softmax.cuh"
#include "math/number.h"

namespace tilewise::cuda::sm80 {

// Numbers below it do not overflow: 2^8 (the rescale threshold) times 2^29 keys times 2^80.
inline constexpr float kLargeValue = 0x1p80f;

__device__ __forceinline__ float value_of(std::uint16_t bits) {
  return math::to_float(math::BFloat16{bits});
}
__device__ __forceinline__ float value_of(float x) { return x; }

// NaN and infinity are not large: they are right as they are.
template <class Element>
__device__ __forceinline__ bool is_large(Element element) {
  const float size = fabsf(value_of(element));
  return size >= kLargeValue && size < HUGE_VALF;
}

// The shift s of a row of up to `keys` keys.
__device__ __forceinline__ float prob_shift(std::int32_t keys) {
  return static_cast<float>(33 - __clz(keys)) + tile::kRescaleThreshold;
}

// Rows that are a stride apart.
struct EvenOffsets {
  std::int64_t stride;
  __device__ __forceinline__ std::int64_t operator()(std::int32_t row) const {
    return row * stride;
  }
};

// Says whether this thread's element of row `row` of V is large. All threads of the block together
// sample the row. offsets(row): how far a row lies from the first.
template <class Element, class Offsets>
__device__ __forceinline__ bool samples_large(const RowsOf<Element>& values, std::int32_t row,
                                              const Offsets& offsets) {
  const std::int32_t column = static_cast<std::int32_t>(threadIdx.x);
  return row >= 0 && row < values.count && column < values.columns &&
         is_large(values.first[offsets(row) + column]);
}
template <class Element>
__device__ __forceinline__ bool samples_large(const RowsOf<Element>& values, std::int32_t row) {
  return samples_large(values, row, EvenOffsets{values.stride});
}

// Says whether 16 bytes hold a large number.
__device__ __forceinline__ bool holds_large(const uint4& chunk, std::uint16_t) {
  const std::uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
  bool large = false;
#pragma unroll
  for (const std::uint32_t word : words)
    large |= is_large(static_cast<std::uint16_t>(word)) ||
             is_large(static_cast<std::uint16_t>(word >> 16));
  return large;
}
__device__ __forceinline__ bool holds_large(const uint4& chunk, float) {
  return is_large(__uint_as_float(chunk.x)) || is_large(__uint_as_float(chunk.y)) ||
         is_large(__uint_as_float(chunk.z)) || is_large(__uint_as_float(chunk.w));
}

// Says whether the rows `keys` of V hold a large number. All threads of the block call it. Several
// loads are in flight at a time.
template <int kThreads, class Element, class Offsets>
__device__ __forceinline__ bool hold_large(const RowsOf<Element>& values, const tile::Range& keys,
                                           const Offsets& offsets) {
  constexpr int kChunk = 16 / sizeof(Element);
  constexpr int kLoads = 8;
  const std::int32_t chunks = (values.columns + kChunk - 1) / kChunk;  // of a row
  const std::int32_t step = kThreads / chunks;                         // rows at a time
  const std::int32_t end = min(keys.end, values.count);
  const std::int32_t thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t column = thread % chunks * kChunk;
  bool large = false;
#pragma unroll 1
  for (std::int32_t row = keys.begin + thread / chunks; row < end && thread < step * chunks;
       row += kLoads * step) {
    const Element* const from = values.first + column;
    const std::int32_t count = min((end - row + step - 1) / step, kLoads);
    if (values.aligned16) {
      uint4 loaded[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        loaded[i] = i < count ? *reinterpret_cast<const uint4*>(from + offsets(row + i * step))
                              : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (const uint4& chunk : loaded) large |= holds_large(chunk, Element{});
    } else {
#pragma unroll 1
      for (int i = 0; i < count * kChunk; ++i) {
        if (column + i % kChunk < values.columns)
          large |= is_large(from[offsets(row + i / kChunk * step) + i % kChunk]);
      }
    }
  }
  return __syncthreads_or(large);
}

template <int kThreads, class Element>
__device__ __forceinline__ bool hold_large(const RowsOf<Element>& values, const tile::Range& keys) {
  return hold_large<kThreads>(values, keys, EvenOffsets{values.stride});
}

}  // namespace tilewise::cuda::sm80
