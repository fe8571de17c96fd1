// The factors that turn products of Q and K into scores. The host prepares them; otherwise a kernel
// would convert them from double for every key tile.
#pragma once

#include "math/config.h"

namespace tilewise::cuda::tile {

// score = product * scale; with cap > 0 it becomes cap * tanh(score / cap).
struct ScoreScaling {
  float scale;
  float cap;
  float short_scale_log2;  // 2 scale log2(e) / cap where ShortSoftcap is accurate, otherwise 0
};

// ShortSoftcap (softcap.cuh) is used for caps from 2^-6 to 64. Below 2^-6, 1 / cap is too large; at
// 64 its error of a score is 2^-17, which does not show in lse.
inline ScoreScaling score_scaling_of(double scale, double softcap) {
  ScoreScaling scaling = {static_cast<float>(scale), static_cast<float>(softcap), 0};
  // 0 means no softcap, so a cap below the least float becomes the least float.
  if (softcap > 0 && scaling.cap == 0) scaling.cap = 0x1p-149f;
  const double size = scale < 0 ? -scale : scale;
  if (softcap >= 0x1p-6 && softcap <= 64 && size >= 0x1p-60 && size <= 0x1p60)
    scaling.short_scale_log2 = static_cast<float>(2 * math::kLog2E * scale / softcap);
  return scaling;
}

}  // namespace tilewise::cuda::tile
