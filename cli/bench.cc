// tilewise bench: the speed of one kernel relative to the peak of the machine, measured in the same
// run.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench_data.h"
#include "calibrate/calibrate.h"
#include "calibrate/gemm.h"
#include "commands.h"
#include "cpu/targets.h"
#include "format.h"
#include "math/integer.h"
#include "phi.h"
#include "plan/host.h"
#include "problem/sequence.h"
#include "progress.h"

namespace tilewise::cli {
namespace {

using nlohmann::json;
using problem::Operation;

constexpr double kEnoughSeconds = 1.0;
constexpr int kLeastRuns = 5;
constexpr double kBackwardFactor = 2.5;  // five matrix products instead of the forward's two

// Returns the number of query-key pairs that the mask lets through, over all heads.
double visible_pairs(const problem::Problem& problem) {
  std::vector<problem::Sequence> sequences(static_cast<std::size_t>(problem.batch));
  problem::fill_sequences(problem, sequences.data());
  double pairs = 0;
  for (const problem::Sequence& sequence : sequences) {
    math::Band band;  // without slices there is one band, the same for every head
    problem::sequence_bands(problem, sequence, 0, &band);
    for (std::int64_t row = 0; row < sequence.q_len; ++row) {
      const math::KeyRange keys = math::visible_keys(band, row);
      pairs += static_cast<double>(math::max(keys.end - math::max(keys.begin, 0), 0));
    }
  }
  return pairs * static_cast<double>(problem.heads);
}

// Returns the flops of visible pairs only, two per multiply-add.
double useful_flops(const problem::Problem& problem) {
  const double width = static_cast<double>(problem.head_dim + problem.value_dim);
  const double forward = 2 * visible_pairs(problem) * width;
  return problem.operation == Operation::kForward ? forward : kBackwardFactor * forward;
}

// Returns the instruction set of a kernel: that of cpu_avx2 is avx2. The ladder is compiled for the
// baseline but measured against the best instruction set of the machine.
std::string target_of(const std::string& kernel, const plan::Host& machine) {
  for (const cpu::Target* target = cpu::kTargets; target->name != nullptr; ++target) {
    if (kernel == std::string("cpu_") + target->name) return target->name;
  }
  return machine.target;
}

struct Timing {
  double least = HUGE_VAL;
  double median = 0;
  int runs = 0;
};

Timing time_runs(Runner& runner, double budget, bool quiet) {
  std::vector<double> times;
  double total = 0;
  Progress progress(100, quiet);
  std::int64_t shown = 0;
  progress.step(runner.kernel());
  while (total < budget || times.size() < kLeastRuns) {
    times.push_back(runner.run());
    total += times.back();
    for (; shown < std::min<std::int64_t>(99, static_cast<std::int64_t>(100 * total / budget));
         ++shown) {
      progress.step(runner.kernel());
    }
  }
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2], static_cast<int>(times.size())};
}

// Returns the bytes of K and V, which every run reads at least once.
double cache_bytes(const problem::Problem& problem) {
  const double rows = static_cast<double>(problem.batch * problem.k_rows * problem.kv_heads);
  return rows * static_cast<double>(problem.head_dim + problem.value_dim) *
         static_cast<double>(problem::dtype_size(problem.dtype));
}

struct Measurement {
  const Runner& runner;
  Timing timing;
  double peak_flops;
  double peak_read;
};

json report(json result, const Measurement& m) {
  const problem::Problem& problem = m.runner.plan().problem;
  const double gflops = useful_flops(problem) / m.timing.least * 1e-9;
  const double read = cache_bytes(problem) / m.timing.least;
  result.update({{"seconds", m.timing.least},
                 {"median_seconds", m.timing.median},
                 {"runs", m.timing.runs},
                 {"gflops", gflops},
                 {"peak_gflops", m.peak_flops * 1e-9},
                 {"fraction_of_peak", gflops * 1e9 / m.peak_flops},
                 {"kv_gbytes_per_second", read * 1e-9},
                 {"read_gbytes_per_second", m.peak_read * 1e-9},
                 {"fraction_of_read", read / m.peak_read}});
  return result;
}

void print_report(const json& r, const std::string& target) {
  const auto number = [&](const char* name) { return r[name].get<double>(); };
  fmt::print("kernel     {} ({} threads)\n", r["kernel"].get<std::string>(),
             r["threads"].get<int>());
  fmt::print("data       {}\n", r["data"].get<std::string>());
  fmt::print("time       {} (fastest of {} runs; median {})\n", format_seconds(number("seconds")),
             r["runs"].get<int>(), format_seconds(number("median_seconds")));
  fmt::print("speed      {}: {:.1f} % of the multiply-add peak, {} ({})\n",
             format_flops(number("gflops") * 1e9), 100 * number("fraction_of_peak"),
             format_flops(number("peak_gflops") * 1e9), target);
  fmt::print("K and V    {}: {:.1f} % of the memory's read rate, {}\n",
             format_rate(number("kv_gbytes_per_second") * 1e9), 100 * number("fraction_of_read"),
             format_rate(number("read_gbytes_per_second") * 1e9));
  fmt::print("workspace  {}\n", format_bytes(number("workspace_bytes")));
}

// Reports the speed of a kernel on a GPU: the median of event-timed runs, relative to a bf16 matrix
// product of cuBLAS in the same run.
int report_device(const Flags& flags, Runner& runner, double budget, json result) {
  const problem::Problem& problem = runner.plan().problem;
  const double before = calibrate::measure_gemm(problem.device_index);
  const Timing timing = time_runs(runner, budget, flags.given("json"));
  const double peak = std::max(before, calibrate::measure_gemm(problem.device_index));
  const double tflops = useful_flops(problem) / timing.median * 1e-12;
  result.update({{"median_seconds", timing.median},
                 {"seconds", timing.least},
                 {"runs", timing.runs},
                 {"tflops", tflops},
                 {"gemm_tflops", peak > 0 ? json(peak * 1e-12) : json(nullptr)},
                 {"fraction_of_gemm", peak > 0 ? json(tflops * 1e12 / peak) : json(nullptr)}});
  if (flags.given("json")) {
    fmt::print("{}\n", result.dump());
    return 0;
  }
  fmt::print("kernel     {} on {}\n", runner.kernel(), result["machine"]["gpu"].get<std::string>());
  fmt::print("data       {}\n", result["data"].get<std::string>());
  fmt::print("time       {} (median of {} runs; fastest {})\n", format_seconds(timing.median),
             timing.runs, format_seconds(timing.least));
  fmt::print("speed      {:.1f} TFLOP/s", tflops);
  if (peak > 0) {
    fmt::print(": {:.1f} % of cuBLAS's bf16 8192^3 product, {:.1f} TFLOP/s\n",
               100 * tflops * 1e12 / peak, peak * 1e-12);
  } else {
    fmt::print(" (no cuBLAS here to compare with)\n");
  }
  fmt::print("workspace  {}\n", format_bytes(static_cast<double>(runner.plan().workspace_bytes)));
  return 0;
}

int report_cpu(const Flags& flags, Runner& runner, double budget, json result) {
  const std::string target = target_of(runner.kernel(), plan::this_host());
  const std::int32_t dtype = runner.plan().problem.dtype;
  const std::int32_t threads = result["threads"];
  const double before = calibrate::measure_flops(target, dtype, threads);
  const Timing timing = time_runs(runner, budget, flags.given("json"));
  const double after = calibrate::measure_flops(target, dtype, threads);
  const double read = calibrate::measure_read(target, threads);
  result = report(std::move(result), {runner, timing, std::max(before, after), read});
  result["machine"]["target"] = target;
  if (flags.given("json")) {
    fmt::print("{}\n", result.dump());
  } else {
    print_report(result, target);
  }
  return 0;
}

double budget_flag(const Flags& flags, double fallback) {
  const double budget = flags.number("seconds", fallback);
  if (budget < 0 || budget > 3600) {
    throw UsageError(fmt::format("--seconds: is {}, must be from 0 to 3600", budget));
  }
  return budget;
}

int run(const Flags& flags, const std::string& command) {
  const bool decode = flags.choice("op", {"forward", "backward", "decode"}) == 2;
  if (!flags.given("shape")) throw UsageError("--shape: missing");
  if (decode && shape_flag(flags).q_len > 16) {
    throw UsageError(fmt::format("--shape: is \"{}\", must have Sq of at most 16 for --op decode",
                                 flags.text("shape")));
  }
  const double budget = budget_flag(flags, kEnoughSeconds);
  Inputs normal = make_inputs(flags, is_backward(flags));
  read_phi(flags, normal);
  const std::vector<verify::Data> data = data_flag(flags, normal.problem);
  const Executor executor(flags);
  if (data.size() > 1) return bench_data(flags, normal, data, executor, budget, command);
  const Subject subject(flags, with_data(normal, data, *executor.get()).front(), executor);
  json result = setting_json(flags, executor, subject.runner(), command);
  result["data"] = data_name(data.front());
  return executor.on_cuda() ? report_device(flags, subject.runner(), budget, std::move(result))
                            : report_cpu(flags, subject.runner(), budget, std::move(result));
}

}  // namespace

Command add_bench(CLI::App& program, const std::string& command) {
  const auto flags = std::make_shared<Flags>(
      program, "bench", "measure the speed of a kernel as a fraction of the machine's peak");
  flags->add_value("op", "forward|backward|decode",
                   "what to measure; default forward; decode: few queries");
  add_shape_flag(*flags);
  add_data_list_flag(*flags);
  add_option_flags(*flags);
  add_phi_flag(*flags);
  flags->add_value("kernel", "NAME", "force a kernel (tilewise info lists them)");
  flags->add_value("seconds", "X", "seconds of repetitions, for each kind of data; default 1");
  add_execution_flags(*flags);
  flags->add_switch("json", "print JSON, with machine, compiler and command");
  flags->set_footer(
      data_help() +
      "\nUseful flops are 2 (D + Dv) per visible query-key pair, and 2.5 times that in backward. "
      "The\npeak is measured before and after, in the kernel's instruction set "
      "(docs/benchmarking.md).\n"
      "Examples:\n"
      "  tilewise bench --op backward --dtype fp32 --shape 1,2048,2048,8,8,128 --causal\n"
      "  tilewise bench --data all --shape 1,1024,1024,8,8,64 --threads 1 --seconds 0.2");
  return {flags, [flags, command] { return run(*flags, command); }};
}

}  // namespace tilewise::cli
