// Random tasks of a quantisation, and what their inputs hold.
#pragma once

#include <cmath>

#include "capi/quantise_oracle.h"
#include "verify/random.h"

namespace tilewise::tests {

using verify::Random;

inline void fill_normal(const QuantiseCase& c, QuantiseTask& task, std::uint64_t seed) {
  Random random(seed);
  for (std::int64_t b = 0; b < (c.packed ? 1 : c.batch); ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t r = 0; r < c.rows; ++r)
        for (std::int64_t d = 0; d < c.width; ++d)
          task.set(b, h, r, d, random.normal() * (random.chance(0.01) ? 20 : 1));
}

// Replaces some numbers by the extremes of the dtype, by NaN and by infinities.
inline void add_extremes(const QuantiseCase& c, QuantiseTask& task, Random& random) {
  const double huge = c.input == TILEWISE_FP16 ? 65504 : 3e38;
  for (int i = 0; i < 12 && c.rows * c.heads * c.width * c.batch > 0; ++i) {
    task.set(c.packed ? 0 : random.between(0, c.batch - 1), random.between(0, c.heads - 1),
             random.between(0, c.rows - 1), random.between(0, c.width - 1),
             random.pick({HUGE_VAL, -HUGE_VAL, std::nan(""), huge, -huge, 1e-40, 0.0}));
  }
}

inline QuantiseCase random_case(Random& random) {
  QuantiseCase c;
  c.width =
      random.pick<std::int64_t>({1, 2, 3, 7, 8, 15, 16, 31, 40, 64, 80, 96, 128, 192, 256, 257});
  c.batch = random.between(1, 3);
  c.rows = random.pick<std::int64_t>({1, 2, 127, 128, 129, 200, 300});
  c.kv_heads = random.between(1, 3);
  c.heads = c.kv_heads * random.between(1, 3);
  c.input = random.pick<std::int32_t>({TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16});
  c.output = random.pick<std::int32_t>({TILEWISE_E4M3, TILEWISE_E5M2});
  c.scales = static_cast<int>(random.between(1, 3));
  c.packed = random.chance(0.3);
  c.heads_first = random.chance(0.3);
  c.padded = random.chance(0.5);
  c.incoherent = random.chance(0.5);
  c.fixed = random.chance(0.25);
  c.seed = random.bits();
  if (c.packed && c.scales == 2 && random.chance(0.8))
    c.starts = {c.rows / 8, c.rows / 2, c.rows / 2, c.rows - c.rows / 4};
  if (c.incoherent && random.chance(0.2)) {
    c.output = random.pick<std::int32_t>({TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16});
    c.scales = 0;
    c.fixed = false;
    c.starts.clear();
  }
  return c;
}

// Normal numbers, in some tasks with extremes among them, and scales that are fixed.
inline void fill_random(const QuantiseCase& c, QuantiseTask& task, Random& random) {
  fill_normal(c, task, random.bits());
  if (random.chance(0.4)) add_extremes(c, task, random);
  for (float& scale : task.scales) {
    if (c.fixed) scale = static_cast<float>(std::exp2(random.uniform() * 12 - 9));
  }
}

}  // namespace tilewise::tests
