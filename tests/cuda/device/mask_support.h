// For the tests of slices and boolean masks in the Hopper kernels.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "cuda/device/support.h"
#include "registry/support.h"

namespace tilewise::tests {

struct Shape {
  std::vector<std::int64_t> sizes;  // B, Sq, Sk, H, Hk, D
  std::int64_t value_dim;
};

inline void add_random_slices(Case& c, verify::Random& random, std::int64_t count) {
  for (; count > 0; --count) {
    const std::int64_t q0 = random.between(0, c.q_len);
    const std::int64_t k0 = random.between(0, c.k_len);
    c.slices.push_back({q0, random.between(q0, c.q_len), k0, random.between(k0, c.k_len),
                        random.between(0, 3), random.between(-1, c.heads - 1)});
  }
}

// Slices beside the options that go with them; the number of the step says which.
inline void add_slices_and_options(Case& c, verify::Random& random, int step) {
  c.slice_heads = random.chance(0.5);
  c.sink = random.chance(0.5);
  if (random.chance(0.3)) c.softcap = 5;
  if (step % 4 == 1) {
    c.q_packed = c.k_packed = true;
    c.batch = 1;
  } else if (step % 4 == 2) {
    c.used = std::vector<std::int64_t>(static_cast<std::size_t>(c.batch), c.k_len - 70);
    c.used[0] = random.between(0, c.k_len);
    c.alibi = true;
  } else if (step % 4 == 3) {
    c.used_q = std::vector<std::int64_t>(static_cast<std::size_t>(c.batch), c.q_len / 2);
    c.used_q[0] = random.between(0, c.q_len);
  }
  add_random_slices(c, random, random.between(1, step < 4 ? 4 : 60));
}

// Sets the mask to what visible(row, key) says.
template <class Visible>
verify::Judge::Edit masked_by(const Visible& visible) {
  return [visible](const tilewise_problem& request) {
    const std::int64_t keys = request.mask.shape[3];
    const std::int64_t rows = request.mask.shape[2];
    verify::for_each_element(request.mask, [&](std::int64_t i, std::int64_t offset) {
      static_cast<std::uint8_t*>(request.mask.data)[offset] =
          visible(i / keys % rows, i % keys) ? 1 : 0;
    });
  };
}

}  // namespace tilewise::tests
