// Rows of a quantisation in the registers of a warp (docs/semantics.md, "Quantisation"): a row is
// taken in parts, of which each lane holds kCount neighbouring columns. With incoherent processing
// a part is a block of the Hadamard transform.
#pragma once

#include <cstring>

#include "cuda/ptx/arithmetic.cuh"
#include "math/incoherent.h"
#include "math/integer.h"
#include "problem/quantisation.h"

namespace tilewise::cuda::fp8 {

using problem::Quantisation;

// The most columns of a rotated row: blocks of 1024 columns and less.
inline constexpr std::int32_t kMostRotated = 2047;
inline constexpr std::uint32_t kInfinityBits = 0x7f800000u;

// Columns [begin, begin + size) of a row.
struct Part {
  std::int32_t begin;
  std::int32_t size;

  // The lane's first column, and how many of its columns there are.
  template <int kCount>
  __device__ __forceinline__ std::int32_t first() const {
    return begin + lane() * kCount;
  }
  template <int kCount>
  __device__ __forceinline__ std::int32_t count() const {
    return math::max(math::min(size - lane() * kCount, kCount), 0);
  }
  __device__ __forceinline__ static std::int32_t lane() {
    return static_cast<std::int32_t>(threadIdx.x % 32);
  }
};

// Calls visit<kCount>(part) for the parts of a row.
template <class Visit>
__device__ __forceinline__ void for_each_part(const Quantisation& task, const Visit& visit) {
  const auto width = static_cast<std::int32_t>(task.width);
  if (!task.incoherent) {
    for (std::int32_t begin = 0; begin < width; begin += 128)
      visit.template operator()<4>(Part{begin, math::min(width - begin, 128)});
    return;
  }
  for (std::int32_t begin = 0; begin < width;) {
    const Part part = {begin, 1 << (31 - __clz(static_cast<unsigned>(width - begin)))};
    if (part.size == 1024) {
      visit.template operator()<32>(part);
    } else if (part.size == 512) {
      visit.template operator()<16>(part);
    } else if (part.size == 256) {
      visit.template operator()<8>(part);
    } else if (part.size == 128) {
      visit.template operator()<4>(part);
    } else if (part.size == 64) {
      visit.template operator()<2>(part);
    } else {
      visit.template operator()<1>(part);
    }
    begin += part.size;
  }
}

template <int kBytes>
struct WordOf;
template <>
struct WordOf<2> {
  using Type = std::uint16_t;
};
template <>
struct WordOf<4> {
  using Type = std::uint32_t;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<16> {
  using Type = uint4;
};

// Loads the lane's numbers of a part; those that do not exist become 0. aligned: rows and parts are
// aligned to 16 bytes, as far as they have as many.
template <int kCount, class S>
__device__ __forceinline__ void load_numbers(const S* row, const Part& part, bool aligned,
                                             float (&x)[kCount]) {
  constexpr int kTogether = math::min(kCount, 16 / static_cast<int>(sizeof(S)));
  const S* const from = row + part.first<kCount>();
  const std::int32_t count = part.count<kCount>();
  if (aligned && count == kCount) {
#pragma unroll
    for (int i = 0; i < kCount; i += kTogether) {
      using Word = typename WordOf<kTogether * sizeof(S)>::Type;
      const Word word = *reinterpret_cast<const Word*>(from + i);
      S numbers[kTogether];
      std::memcpy(numbers, &word, sizeof(word));
#pragma unroll
      for (int e = 0; e < kTogether; ++e) x[i + e] = math::load<float>(numbers[e]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = i < count ? math::load<float>(from[i]) : 0.0f;
  }
}

// Multiplies a block of columns by their signs over the root of its size, and transforms it.
// signs: a bit for each column of a row
template <int kCount>
__device__ __forceinline__ void rotate(const std::uint32_t* signs, const Part& part,
                                       float (&x)[kCount]) {
  const float root = math::reciprocal_root(part.size);
  const std::int32_t first = part.first<kCount>();
  const std::uint32_t negative = signs[first / 32] >> (first % 32);
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] = __fmul_rn(x[i], (negative >> i & 1) != 0 ? -root : root);
#pragma unroll
  for (int step = 1; step < kCount; step *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if ((i & step) != 0) continue;
      const float sum = x[i] + x[i + step];
      x[i + step] = x[i] - x[i + step];
      x[i] = sum;
    }
  }
  for (std::int32_t step = 1; step * kCount < part.size; step *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float other = __shfl_xor_sync(~0u, x[i], step);
      x[i] = (Part::lane() & step) != 0 ? other - x[i] : x[i] + other;
    }
  }
#pragma unroll
  for (float& number : x) {
    if ((__float_as_uint(number) & kInfinityBits) == kInfinityBits)
      number = __uint_as_float(0x7fc00000u);
  }
}

// The larger of `largest` and the bits of the finite magnitudes.
template <int kCount>
__device__ __forceinline__ std::uint32_t largest_of(const float (&x)[kCount],
                                                    std::uint32_t largest) {
#pragma unroll
  for (const float number : x) {
    const std::uint32_t bits = __float_as_uint(number) & 0x7fffffffu;
    if (bits < kInfinityBits) largest = math::max(largest, bits);
  }
  return largest;
}

// Four codes. NaN becomes 0x7f.
template <class Format>
__device__ __forceinline__ std::uint32_t codes_of(const float (&x)[4]) {
  constexpr bool kE4M3 = std::is_same_v<Format, math::Float8E4M3>;
  std::uint32_t codes =
      kE4M3 ? ptx::pack_e4m3(x[0], x[1], x[2], x[3]) : ptx::pack_e5m2(x[0], x[1], x[2], x[3]);
  if (x[0] == x[0] && x[1] == x[1] && x[2] == x[2] && x[3] == x[3]) return codes;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (x[i] != x[i]) codes = (codes & ~(0xFFu << 8 * i)) | 0x7Fu << 8 * i;
  }
  return codes;
}

// Stores the codes of x * inverse. Adds the number of those that were too large to `saturated`.
template <class Format, int kCount>
__device__ __forceinline__ void store_codes(const float (&x)[kCount], float inverse,
                                            std::uint8_t* row, const Part& part, bool aligned,
                                            std::int32_t& saturated) {
  constexpr int kTogether = math::min(kCount, 4);
  std::uint8_t* const to = row + part.first<kCount>();
  const std::int32_t count = part.count<kCount>();
#pragma unroll
  for (int i = 0; i < kCount; i += kTogether) {
    float scaled[4] = {};
#pragma unroll
    for (int e = 0; e < kTogether; ++e) {
      scaled[e] = __fmul_rn(x[i + e], inverse);
      const std::uint32_t bits = __float_as_uint(scaled[e]) & 0x7fffffffu;
      const bool exists = i + e < count;
      saturated += exists && bits >= math::first_saturated<Format>() && bits <= kInfinityBits;
    }
    const std::uint32_t codes = codes_of<Format>(scaled);
    if (kTogether == 4 && aligned && i + 4 <= count) {
      *reinterpret_cast<std::uint32_t*>(to + i) = codes;
    } else {
#pragma unroll
      for (int e = 0; e < kTogether; ++e) {
        if (i + e < count) to[i + e] = static_cast<std::uint8_t>(codes >> 8 * e);
      }
    }
  }
}

template <class Element, int kCount>
__device__ __forceinline__ void store_wide(const float (&x)[kCount], void* row, const Part& part) {
  Element* const to = static_cast<Element*>(row) + part.first<kCount>();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i < part.count<kCount>()) math::store(x[i], to + i);
  }
}

}  // namespace tilewise::cuda::fp8
