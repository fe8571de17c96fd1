// tilewise check: runs every kernel of the registry on every case, and compares with the fp64
// oracle.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "execution.h"
#include "format.h"
#include "plan/registry.h"
#include "progress.h"
#include "table.h"
#include "verify/cases.h"
#include "verify/judge.h"

namespace tilewise::cli {
namespace {

using nlohmann::json;
using problem::Operation;

struct Score {
  Operation operation;
  const char* kernel;
  int passed = 0;
  int failed = 0;
  int unsupported = 0;
  double worst_ratio = 0;
  std::string why_not;  // reason of the first case that the kernel does not support
  std::vector<std::string> failures;

  void add(const verify::Verdict& verdict) {
    worst_ratio = std::max(worst_ratio, verdict.ratio);
    switch (verdict.result) {
      case verify::Verdict::kPassed:
        ++passed;
        break;
      case verify::Verdict::kFailed:
        ++failed;
        failures.push_back(verdict.text);
        break;
      case verify::Verdict::kUnsupported:
        if (unsupported++ == 0) why_not = verdict.text;
        break;
    }
  }
};

const char* operation_name(Operation operation) {
  return operation == Operation::kForward ? "forward" : "backward";
}

// Lists the kernels of `device`; all of them if it is -1.
std::vector<Score> list_kernels(const std::string& only, std::int32_t device) {
  std::vector<Score> scores;
  for (const Operation operation : {Operation::kForward, Operation::kBackward}) {
    for (const problem::Kernel* kernel : plan::kernels(operation)) {
      if (!only.empty() && only != kernel->name) continue;
      if (device >= 0 && kernel->device != device) continue;
      Score score = {};
      score.operation = operation;
      score.kernel = kernel->name;
      scores.push_back(score);
    }
  }
  if (!scores.empty()) return scores;
  std::string names;
  for (const problem::Kernel* kernel : plan::kernels(Operation::kForward)) {
    names += std::string(names.empty() ? "" : ", ") + kernel->name;
  }
  throw UsageError(fmt::format("--kernel: is \"{}\", must be {}", only, names));
}

json score_json(const Score& score) {
  return {{"operation", operation_name(score.operation)},
          {"kernel", score.kernel},
          {"passed", score.passed},
          {"failed", score.failed},
          {"unsupported", score.unsupported},
          {"worst_ratio", score.worst_ratio},
          {"failures", score.failures}};
}

void print_scores(const std::vector<Score>& scores) {
  Table table({"kernel", "passed", "failed", "unsupported", "worst error / limit"});
  for (const Score& score : scores) {
    table.add({fmt::format("{:<9}{}", operation_name(score.operation), score.kernel),
               std::to_string(score.passed), std::to_string(score.failed),
               std::to_string(score.unsupported),
               score.passed > 0 ? fmt::format("{:.2f}", score.worst_ratio) : "-"});
  }
  fmt::print("{}", table.text());
  for (const Score& score : scores) {
    if (!score.why_not.empty()) fmt::print("\nnot supported: {}\n", score.why_not);
    for (const std::string& failure : score.failures) {
      fmt::print("\nFAILED {}\n", failure);
    }
  }
}

// Returns the number of --device, or -1 without it. Kernels of a missing device support no case,
// and give that as the reason.
std::int32_t device_flag(const Flags& flags) {
  const std::int32_t device = static_cast<std::int32_t>(flags.choice("device", {"cpu", "cuda"}));
  if (!flags.given("device")) return -1;
  cuda::DeviceInfo info;
  if (device == TILEWISE_CUDA && cuda::find_device(0, &info) != TILEWISE_OK)
    throw UsageError(fmt::format("--device: {}; use --device cpu", problem::message()));
  return device;
}

int run(const Flags& flags) {
  const double start = now_seconds();
  const std::uint64_t seed = flags.given("seed") ? flags.natural("seed", UINT32_MAX) : 1;
  std::vector<Score> scores = list_kernels(flags.text("kernel"), device_flag(flags));
  const std::vector<verify::Case> cases = verify::check_cases(seed);
  {
    Progress progress(static_cast<std::int64_t>(cases.size()), flags.given("json"));
    for (const verify::Case& one : cases) {
      progress.step(verify::describe(one));
      verify::Judge judge(one);
      for (Score& score : scores) {
        if (score.operation == one.operation) score.add(judge.judge(score.kernel));
      }
    }
  }
  const bool passed = std::all_of(scores.begin(), scores.end(),
                                  [](const Score& score) { return score.failed == 0; });
  const double seconds = now_seconds() - start;
  if (flags.given("json")) {
    json rows = json::array();
    for (const Score& score : scores) rows.push_back(score_json(score));
    const json result = {{"seed", seed}, {"seconds", seconds}, {"passed", passed}, {"rows", rows}};
    fmt::print("{}\n", result.dump());
  } else {
    print_scores(scores);
    fmt::print("\n{} cases against the fp64 oracle in {}: {}\n", cases.size(),
               format_seconds(seconds), passed ? "all passed" : "FAILED");
  }
  return passed ? 0 : 1;
}

}  // namespace

Command add_check(CLI::App& program) {
  const auto flags = std::make_shared<Flags>(
      program, "check", "check every kernel against the fp64 oracle on this machine");
  flags->add_value("kernel", "NAME", "check only this kernel");
  flags->add_value("device", "cpu|cuda", "check only the kernels of this device");
  flags->add_value("seed", "N", "seed of the random numbers in the cases; default 1");
  flags->add_switch("json", "print the result as JSON");
  flags->set_footer(
      "The exit code is 1 if a case fails. For each failure, the whole case is printed.\n"
      "Example: TILEWISE_CPU_TARGET=avx2 tilewise check");
  return {flags, [flags] { return run(*flags); }};
}

}  // namespace tilewise::cli
