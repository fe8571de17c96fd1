#include "ranks_demo.h"

#include <algorithm>
#include <cstdio>

#include "report.h"

namespace gpt {
namespace {

constexpr double kAllowedDifference = 1e-6;
constexpr std::int64_t kPrintedRows = 10;

}  // namespace

std::vector<std::string> ranks_demo_arguments(std::vector<std::string> names) {
  names.insert(names.end(), {"--source", "--steps", "--length", "--seed"});
  return names;
}

RanksDemo read_ranks_demo(const Arguments& arguments) {
  RanksDemo demo;
  demo.options.steps = arguments.integer("--steps", 1, 100000, 20);
  demo.options.sequences = 1;
  demo.options.length = arguments.integer("--length", 1, 65536, 1024);
  demo.options.seed = static_cast<std::uint64_t>(arguments.integer("--seed", 0, INT64_MAX - 1, 1));
  demo.corpus = read_corpus(arguments.required("--source"));
  return demo;
}

std::vector<double> train_demo(const RanksDemo& demo, const Ranks* ranks) {
  const Compute compute(1);
  TrainOptions options = demo.options;
  options.ranks = ranks;
  return train<double>(ModelConfig(), options, demo.corpus, compute).losses;
}

int report_ranks(const RanksDemo& demo, std::int32_t size, const char* ranks,
                 const std::vector<double>& one, const std::vector<double>& several) {
  std::printf("A byte-level GPT in fp64, %lld steps on one sequence of %lld bytes\n\n",
              static_cast<long long>(demo.options.steps),
              static_cast<long long>(demo.options.length));
  std::printf("Loss in nats per byte; %d %s divide the sequence, attention is a ring\n\n", size,
              ranks);
  std::printf("    step      one process  %4d %-9s  difference\n", size, ranks);
  const std::int64_t steps = static_cast<std::int64_t>(one.size());
  const std::int64_t interval =
      std::max<std::int64_t>(1, (steps + kPrintedRows - 1) / kPrintedRows);
  for (std::int64_t step = 0; step < steps; ++step) {
    if (step % interval != 0 && step + 1 != steps) continue;
    const auto s = static_cast<std::size_t>(step);
    std::printf("  %6lld  %15.12f  %15.12f  %9.1e\n", static_cast<long long>(step + 1), one[s],
                several[s], several[s] - one[s]);
  }
  const double difference = largest_difference(one, several);
  const bool agree = difference <= kAllowedDifference;
  std::printf("\n  Largest difference of a step: %.1e (allowed: %.0e)%s\n", difference,
              kAllowedDifference, agree ? "" : "  FAILED");
  return agree ? 0 : 1;
}

}  // namespace gpt
