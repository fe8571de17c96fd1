// The score mod of the Hopper backward kernel, on fragments of S^T: rows of the fragment are keys.
#pragma once

#include "cuda/ptx/arithmetic.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/score_mod.cuh"

namespace tilewise::cuda::backward::sm90 {

// The layout of a lane's scores (tile/score_mod.cuh).
struct TransposedLayout {
  TILEWISE_INLINE static constexpr int row_offset(int r) { return tile::register_column(r); }
  TILEWISE_INLINE static constexpr int column(int r) { return 8 * tile::register_row(r); }
};

// Applies scale and softcap to products. derivatives: those of the softcap, two in a number.
template <bool kFp16, int kCount>
__device__ __forceinline__ void scale_with_derivatives(const tile::ScoreScaling& scaling,
                                                       float (&scores)[kCount],
                                                       std::uint32_t (&derivatives)[kCount / 2]) {
  if (scaling.cap <= 0) {
#pragma unroll
    for (float& score : scores) score *= scaling.scale;
#pragma unroll
    for (std::uint32_t& pair : derivatives) pair = ptx::pack<kFp16>(1, 1);
  } else if (scaling.short_scale_log2 != 0) {
    const tile::ShortSoftcap cap{scaling};
#pragma unroll
    for (int r = 0; r < kCount; r += 2) {
      float low, high;
      scores[r] = cap.with_derivative(scores[r], low);
      scores[r + 1] = cap.with_derivative(scores[r + 1], high);
      derivatives[r / 2] = ptx::pack<kFp16>(low, high);
    }
  } else {
    const tile::Softcap cap{scaling};
#pragma unroll
    for (int r = 0; r < kCount; r += 2) {
      derivatives[r / 2] =
          ptx::pack<kFp16>(math::softcap_derivative(scores[r] * scaling.scale, scaling.cap),
                           math::softcap_derivative(scores[r + 1] * scaling.scale, scaling.cap));
      scores[r] = cap(scores[r]);
      scores[r + 1] = cap(scores[r + 1]);
    }
  }
}

}  // namespace tilewise::cuda::backward::sm90
