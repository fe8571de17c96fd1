// The time of attention with a learned relative position as a score function, with the same numbers
// as a bias, and with neither. The three run in turns, and the minima count:
//   score_function_bench --benchmark_enable_random_interleaving=true --benchmark_repetitions=10
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <tilewise/tilewise.hpp>
#include <vector>

namespace {

using tilewise::Operation;

constexpr std::int64_t kLength = 2048, kHeads = 4, kDim = 128;

enum class Term { kNone, kFunction, kBias };

std::vector<float> waves(std::int64_t count, float frequency) {
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = std::sin(frequency * static_cast<float>(i % 9973));
  return numbers;
}

// A number for each head and distance i - j.
struct Table {
  std::vector<float> values = waves(kHeads * 2 * kLength, 0.37f);

  const float* of_distance(std::int64_t head) const {
    return values.data() + head * 2 * kLength + kLength;
  }
  template <class T>
  void add(const tilewise::ScoreTile& tile, T* scores) const {
    const float* const terms = of_distance(tile.head);
    tilewise::for_each_pair(tile, [=](std::int64_t i, std::int64_t j, std::int64_t at) {
      scores[at] += static_cast<T>(terms[i - j]);
    });
  }
};

void run(benchmark::State& state, Operation operation, Term term) {
  const std::int64_t count = kLength * kHeads * kDim;
  std::vector<float> q = waves(count, 0.71f), k = waves(count, 1.13f), v = waves(count, 2.37f);
  std::vector<float> out = q, dout = v, dq = q, dk = q, dv = q;
  std::vector<float> lse(static_cast<std::size_t>(kHeads * kLength));
  const Table table;
  std::vector<float> bias(term == Term::kBias ? static_cast<std::size_t>(kHeads * kLength * kLength)
                                              : std::size_t{0});
  const tilewise::ScoreFunction function(
      [&](const tilewise::ScoreTile& tile, auto* scores) { table.add(tile, scores); },
      [](const tilewise::ScoreTile&, const auto*, auto*) {});
  tilewise::Problem problem;
  const auto rows = [](std::vector<float>& data) {
    return tilewise::tensor(std::span(data), {1, kLength, kHeads, kDim});
  };
  problem.q = rows(q);
  problem.k = rows(k);
  problem.v = rows(v);
  problem.out = rows(out);
  problem.dout = rows(dout);
  problem.dq = rows(dq);
  problem.dk = rows(dk);
  problem.dv = rows(dv);
  problem.lse = tilewise::tensor(std::span(lse), {1, kHeads, kLength});
  if (term == Term::kFunction) problem.score_function = function.get();
  if (term == Term::kBias) {
    for (std::int64_t n = 0; n < kHeads * kLength * kLength; ++n) {
      const std::int64_t i = n / kLength % kLength;
      bias[static_cast<std::size_t>(n)] = table.of_distance(n / kLength / kLength)[i - n % kLength];
    }
    problem.bias = tilewise::tensor(std::span(bias), {1, kHeads, kLength, kLength});
  }
  tilewise::forward(problem);
  const tilewise::Plan plan(operation, problem);
  const tilewise::Workspace workspace = plan.make_workspace();
  for (auto _ : state) plan.run(problem, workspace);
  state.SetLabel(plan.kernel());
}

const bool registered = [] {
  for (const Operation operation : {Operation::kForward, Operation::kBackward}) {
    for (const auto& [name, term] :
         {std::pair{"none", Term::kNone}, {"function", Term::kFunction}, {"bias", Term::kBias}}) {
      const std::string pass = operation == Operation::kForward ? "forward/" : "backward/";
      benchmark::RegisterBenchmark(
          (pass + name).c_str(),
          [=, own = term](benchmark::State& state) { run(state, operation, own); })
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond)
          ->ComputeStatistics("min", [](const std::vector<double>& times) {
            return *std::min_element(times.begin(), times.end());
          });
    }
  }
  return true;
}();

}  // namespace
