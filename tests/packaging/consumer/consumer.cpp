// A user's program in C++20 over the C interface.
#include <tilewise/tilewise.h>

#include <array>
#include <cmath>
#include <cstdio>

int main() {
  // B = 1, Sq = Sk = 2, H = Hk = 1, D = Dv = 2
  std::array<float, 4> q{}, k{1, 2, 3, 4}, v{1, 10, 3, 30}, out{};
  const std::array<int64_t, 4> shape{1, 2, 1, 2};
  tilewise_problem problem;
  tilewise_problem_init(&problem);
  problem.q = tilewise_contiguous(q.data(), TILEWISE_FP32, 4, shape.data());
  problem.k = tilewise_contiguous(k.data(), TILEWISE_FP32, 4, shape.data());
  problem.v = tilewise_contiguous(v.data(), TILEWISE_FP32, 4, shape.data());
  problem.out = tilewise_contiguous(out.data(), TILEWISE_FP32, 4, shape.data());
  if (tilewise_forward(&problem, nullptr) != TILEWISE_OK) {
    std::fprintf(stderr, "%s\n", tilewise_last_error());
    return 1;
  }
  // Equal scores: every row is the mean of the values.
  const std::array<float, 4> expected{2, 20, 2, 20};
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!(std::fabs(out[i] - expected[i]) <= 1e-5F)) {
      std::fprintf(stderr, "out[%zu] is %g, expected %g\n", i, static_cast<double>(out[i]),
                   static_cast<double>(expected[i]));
      return 1;
    }
  }
  std::printf("tilewise %s from C++20: ok\n", tilewise_version());
  return 0;
}
