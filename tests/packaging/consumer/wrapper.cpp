// A user's program over tilewise.hpp: equal scores, so every row of the output is the mean of the
// values.
#include <cmath>
#include <cstdio>
#include <span>
#include <tilewise/tilewise.hpp>
#include <vector>

int main() {
  // B = 1, Sq = Sk = 2, H = Hk = 1, D = Dv = 2
  std::vector<float> q(4), k{1, 2, 3, 4}, v{1, 10, 3, 30}, out(4);
  tilewise::Problem problem;
  problem.q = tilewise::tensor(std::span(q), {1, 2, 1, 2});
  problem.k = tilewise::tensor(std::span(k), {1, 2, 1, 2});
  problem.v = tilewise::tensor(std::span(v), {1, 2, 1, 2});
  problem.out = tilewise::tensor(std::span(out), {1, 2, 1, 2});
  tilewise::forward(problem);
  tilewise::shutdown();
  const tilewise::Plan plan(tilewise::Operation::kForward, problem);
  plan.run(problem, plan.make_workspace());
  if (std::fabs(out[0] - 2) > 1e-5F || std::fabs(out[3] - 20) > 1e-5F) return 1;
  problem.v.rank = 9;
  try {
    tilewise::forward(problem);
  } catch (const tilewise::Error& error) {
    std::printf("%s: %s\n", tilewise::version().c_str(), error.what());
    return error.status() == TILEWISE_INVALID_ARGUMENT ? 0 : 1;
  }
  return 1;
}
