// What nvcc includes before device code: the indices of a thread, and the functions that device
// code calls without an include.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/emulation/block.h"
#include "cuda/emulation/races.h"
#include "cuda_runtime_api.h"

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct alignas(8) float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

extern uint3 threadIdx;  // of the running thread
extern dim3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

// ---- arithmetic ----

inline float __fmul_rn(float a, float b) { return a * b; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline int __clz(unsigned x) { return std::countl_zero(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(unsigned x) { return x == 0 ? 0 : std::countr_zero(x) + 1; }
inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }

// ---- the block ----

inline void __nanosleep(unsigned) {}
inline void __syncthreads() { tilewise::emulation::meet_block(false); }
inline int __syncthreads_or(int value) { return tilewise::emulation::meet_block(value != 0); }

// ---- all blocks ----

// Other blocks may run before it.
inline TILEWISE_UNCHECKED unsigned atomicAdd(unsigned* to, unsigned x) {
  tilewise::emulation::meet_blocks();
  tilewise::emulation::record_access(to, sizeof(x), tilewise::emulation::Access::kAtomic);
  const unsigned before = *to;
  *to += x;
  return before;
}
inline TILEWISE_UNCHECKED unsigned long long atomicAdd(unsigned long long* to,
                                                       unsigned long long x) {
  tilewise::emulation::meet_blocks();
  tilewise::emulation::record_access(to, sizeof(x), tilewise::emulation::Access::kAtomic);
  const unsigned long long before = *to;
  *to += x;
  return before;
}
inline TILEWISE_UNCHECKED unsigned atomicMax(unsigned* to, unsigned x) {
  tilewise::emulation::meet_blocks();
  tilewise::emulation::record_access(to, sizeof(x), tilewise::emulation::Access::kAtomic);
  const unsigned before = *to;
  if (x > before) *to = x;
  return before;
}
// Only for shared memory.
template <class T>
TILEWISE_UNCHECKED T atomicExch(T* to, T x) {
  tilewise::emulation::record_access(to, sizeof(x), tilewise::emulation::Access::kAtomic);
  const T before = *to;
  *to = x;
  return before;
}
inline TILEWISE_UNCHECKED unsigned atomicOr(unsigned* to, unsigned x) {
  tilewise::emulation::record_access(to, sizeof(x), tilewise::emulation::Access::kAtomic);
  const unsigned before = *to;
  *to |= x;
  return before;
}
inline TILEWISE_UNCHECKED unsigned atomicAnd(unsigned* to, unsigned x) {
  tilewise::emulation::record_access(to, sizeof(x), tilewise::emulation::Access::kAtomic);
  const unsigned before = *to;
  *to &= x;
  return before;
}
inline void __threadfence_block() {}

// ---- the warp ----

namespace tilewise::emulation {

// Exchanges values of the lanes of the mask. combine() computes what each lane gets:
//   combine(values, mask of the lanes that gave one, lane) -> its result
template <class T, class Combine>
T exchange(std::uint32_t mask, T value, Combine) {
  static_assert(std::is_empty_v<Combine>, "All lanes of a collective pass the same function.");
  struct Request {
    T value;
    T result;
  };
  Request request = {value, {}};
  meet_warp(
      mask,
      [](const Requests& requests) {
        T values[kWarpThreads] = {};
        std::uint32_t given = 0;
        for (unsigned lane = 0; lane < kWarpThreads; ++lane) {
          if (requests[lane] == nullptr) continue;
          values[lane] = static_cast<const Request*>(requests[lane])->value;
          given |= 1u << lane;
        }
        for (unsigned lane = 0; lane < kWarpThreads; ++lane) {
          if (requests[lane] != nullptr)
            static_cast<Request*>(requests[lane])->result = Combine{}(values, given, lane);
        }
      },
      &request);
  return request.result;
}

}  // namespace tilewise::emulation

inline void __syncwarp(unsigned mask = ~0u) {
  tilewise::emulation::meet_warp(
      mask,
      [](const tilewise::emulation::Requests& requests) {
        unsigned lanes = 0;
        for (unsigned lane = 0; lane < tilewise::emulation::kWarpThreads; ++lane)
          lanes |= (requests[lane] != nullptr ? 1u : 0u) << lane;
        tilewise::emulation::order_warp(lanes);
      },
      &threadIdx);
}

namespace tilewise::emulation {

inline unsigned own_lane() { return threadIdx.x % kWarpThreads; }

// The value of lane `source`, which must participate.
template <class T>
T shuffle(std::uint32_t mask, T value, unsigned source) {
  struct Arguments {
    T value;
    unsigned source;
  };
  const auto pick = [](const Arguments* given, std::uint32_t lanes, unsigned lane) {
    const unsigned from = given[lane].source;
    if (from >= kWarpThreads || (lanes >> from & 1) == 0)
      fail("shuffle: lane %u asks for lane %u, which gives nothing", lane, from);
    return given[from];
  };
  return exchange(mask, Arguments{value, source}, pick).value;
}

template <class T>
T reduce_min(std::uint32_t mask, T value) {
  return exchange(mask, value, [](const T* values, std::uint32_t lanes, unsigned lane) {
    T least = values[lane];
    for (unsigned other = 0; other < kWarpThreads; ++other) {
      if ((lanes >> other & 1) != 0 && values[other] < least) least = values[other];
    }
    return least;
  });
}

}  // namespace tilewise::emulation

template <class T>
T __shfl_sync(unsigned mask, T value, int source) {
  return tilewise::emulation::shuffle(mask, value, static_cast<unsigned>(source) % 32);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int step) {
  const unsigned lane = tilewise::emulation::own_lane();
  return tilewise::emulation::shuffle(mask, value, lane ^ static_cast<unsigned>(step));
}
// Lanes that have no lane `step` before them keep their value.
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned step) {
  const unsigned lane = tilewise::emulation::own_lane();
  return tilewise::emulation::shuffle(mask, value, lane < step ? lane : lane - step);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return tilewise::emulation::exchange(mask, predicate != 0 ? 1u : 0u,
                                       [](const unsigned* values, std::uint32_t, unsigned) {
                                         unsigned votes = 0;
                                         for (unsigned lane = 0; lane < 32; ++lane)
                                           votes |= values[lane] << lane;
                                         return votes;
                                       });
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  return tilewise::emulation::exchange(mask, value,
                                       [](const unsigned* values, std::uint32_t, unsigned) {
                                         unsigned all = 0;
                                         for (unsigned lane = 0; lane < 32; ++lane)
                                           all |= values[lane];
                                         return all;
                                       });
}
inline int __reduce_min_sync(unsigned mask, int value) {
  return tilewise::emulation::reduce_min(mask, value);
}
inline int __reduce_max_sync(unsigned mask, int value) {
  return ~tilewise::emulation::reduce_min(mask, ~value);
}
