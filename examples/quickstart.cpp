// Attention in C++20: forward, then the gradients.
#include <cmath>
#include <cstdio>
// snippet: attention
#include <tilewise/tilewise.hpp>

// Causal attention of 8 query heads on 2 key/value heads, and the gradients of sum(out).
struct Attention {
  static constexpr std::int64_t kBatch = 2, kLength = 128, kHeads = 8, kKvHeads = 2, kDim = 64;
  static constexpr std::size_t kQSize = kBatch * kLength * kHeads * kDim;
  static constexpr std::size_t kKSize = kBatch * kLength * kKvHeads * kDim;
  std::vector<float> q = std::vector<float>(kQSize), k = std::vector<float>(kKSize), v = k;
  std::vector<float> out = q, dout = std::vector<float>(kQSize, 1.0f), dq = q, dk = k, dv = k;
  std::vector<float> lse = std::vector<float>(kBatch * kHeads * kLength);

  void run() {
    const auto heads = [](std::vector<float>& data, std::int64_t count) {
      return tilewise::tensor(std::span(data), {kBatch, kLength, count, kDim});
    };
    tilewise::Problem problem;
    problem.causal = 1;
    problem.q = heads(q, kHeads);
    problem.k = heads(k, kKvHeads);
    problem.v = heads(v, kKvHeads);
    problem.out = heads(out, kHeads);
    problem.lse = tilewise::tensor(std::span(lse), {kBatch, kHeads, kLength});
    tilewise::forward(problem);  // throws tilewise::Error
    problem.dout = heads(dout, kHeads);
    problem.dq = heads(dq, kHeads);
    problem.dk = heads(dk, kKvHeads);
    problem.dv = heads(dv, kKvHeads);
    tilewise::backward(problem);
  }
};
// end of snippet

// The probabilities of a row sum to 1, so the gradients of v sum to the elements of out.
int main() try {
  Attention attention;
  for (std::size_t i = 0; i < attention.q.size(); ++i)
    attention.q[i] = std::sin(0.1f * static_cast<float>(i));
  for (std::size_t i = 0; i < attention.k.size(); ++i) {
    attention.k[i] = std::cos(0.2f * static_cast<float>(i));
    attention.v[i] = std::sin(0.3f * static_cast<float>(i));
  }
  attention.run();
  double sum = 0;
  for (const float value : attention.dv) sum += static_cast<double>(value);
  std::printf("sum(dv) = %.1f (expected %zu.0)\n", sum, attention.out.size());
  return std::fabs(sum - static_cast<double>(attention.out.size())) < 0.1 ? 0 : 1;
} catch (const tilewise::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
