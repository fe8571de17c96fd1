// FlashDecoding++ (math/unified_maximum.h): the anchor of a part is phi, not the maximum of each
// row. All parts of a row then have the same anchor, so that they merge by plain sums. A split is
// the keys of a part that one group of warps has. If phi does not serve one of its rows, only that
// group computes again, with maxima.
#pragma once

#include "cuda/decode/parameters.h"
#include "math/exp2.h"
#include "math/unified_maximum.h"

namespace tilewise::cuda::decode {

// Returns phi of a head in the units of a state's max. A phi that is not finite counts as 0, and
// one that is far from all scores as one that is less far: its anchor must not be a huge one
// (tile/exact_max.cuh).
__device__ __forceinline__ float phi_of_head(const Parameters& parameters, std::int32_t head) {
  constexpr float kMostAnchor = 0x1p19f;
  const problem::View& view = parameters.problem.phi;
  const float phi = static_cast<const float*>(view.data)[view.offset(0, head, 0)];
  const float anchor = phi * static_cast<float>(math::kLog2E);
  const bool is_finite = anchor - anchor == 0;
  return is_finite ? fmaxf(-kMostAnchor, fminf(anchor, kMostAnchor)) / parameters.scale_log2 : 0;
}

// Whether phi has served a row. magnitude: the sum of the absolute values of its unnormalised out;
// it stands for the largest of them. keys: of the split.
template <bool kFp16>
__device__ __forceinline__ bool is_safe_row(float sum, float magnitude, std::int32_t keys) {
  const bool safe_sum =
      kFp16 ? math::is_safe_sum_of_fp16(sum, static_cast<float>(keys)) : math::is_safe_sum(sum);
  return safe_sum && magnitude >= static_cast<float>(math::kSmallestSafeOut) &&
         magnitude <= static_cast<float>(math::kLargestSafeOut);
}

// One thread of a split that falls back calls it.
__device__ __forceinline__ void count_fallback(const Parameters& parameters) {
  const problem::View& counter = parameters.problem.phi_fallbacks;
  if (counter.present()) atomicAdd(static_cast<unsigned long long*>(counter.data), 1ull);
}

}  // namespace tilewise::cuda::decode
