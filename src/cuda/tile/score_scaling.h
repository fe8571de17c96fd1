// From products to scores, as the host prepares it: a kernel would convert numbers from double for
// every tile of keys.
#pragma once

#include "math/config.h"

namespace tilewise::cuda::tile {

// score = product * scale; with cap > 0 it becomes cap * tanh(score / cap).
struct ScoreScaling {
  float scale;
  float cap;
  float short_unit;  // from products to exponents of 2 where ShortSoftcap serves, else 0
};

// ShortSoftcap (softcap.cuh) is for caps from 2^-6, below which 1 / cap is large, to 64, where its
// error of a score is 2^-17 and still does not show in lse.
inline ScoreScaling score_scaling_of(double scale, double softcap) {
  ScoreScaling scaling = {static_cast<float>(scale), static_cast<float>(softcap), 0};
  // None is 0: a cap below the numbers of a float is still one.
  if (softcap > 0 && scaling.cap == 0) scaling.cap = 0x1p-149f;
  const double size = scale < 0 ? -scale : scale;
  if (softcap >= 0x1p-6 && softcap <= 64 && size >= 0x1p-60 && size <= 0x1p60)
    scaling.short_unit = static_cast<float>(2 * math::kLog2E * scale / softcap);
  return scaling;
}

}  // namespace tilewise::cuda::tile
