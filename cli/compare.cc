// tilewise compare: runs every kernel on one problem and prints one row for each.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "execution.h"
#include "format.h"
#include "outputs.h"
#include "plan/registry.h"
#include "plot.h"
#include "problem/tensors.h"
#include "progress.h"
#include "random_inputs.h"
#include "reference/kernels.h"
#include "reference/traffic.h"
#include "standard.h"
#include "table.h"

namespace tilewise::cli {
namespace {

using nlohmann::json;
using problem::Operation;

constexpr double kEnoughSeconds = 0.3;  // seconds of repetitions, from which the minimum is taken
constexpr double kSlowSeconds = 1.0;    // from this many seconds on, one run is enough
constexpr int kMostRuns = 50;

struct Row {
  std::string name;
  bool is_rung = false;
  std::string skipped;  // why the kernel was skipped, if it was
  double seconds = NAN;
  double workspace_bytes = NAN;
  double traffic_bytes = NAN;
  double predicted_bytes = NAN;
  verify::ErrorNorms error = {NAN, NAN};
};

// The problem, the executor and the standard of a comparison.
struct Comparison {
  Operation operation;
  Inputs& inputs;
  const Executor& executor;
  std::int64_t sram_bytes;
};

// Poisons the outputs, so that an element that one kernel does not write cannot hold the result of
// another.
void poison_outputs(const Comparison& comparison) {
  for (const problem::NamedTensor& tensor : problem::kTensors) {
    const auto array = comparison.inputs.arrays.find(tensor.name);
    const bool output = tensor.role(comparison.operation) == problem::Role::kOutput;
    if (!output || array == comparison.inputs.arrays.end()) continue;
    std::fill(array->second.writable.begin(), array->second.writable.end(), std::byte{0xFF});
  }
}

Row measure(const Comparison& comparison, const problem::Kernel& kernel, const Standard& standard) {
  Row row;
  row.name = kernel.name;
  row.is_rung = kernel.is_rung;
  try {
    Runner runner(comparison.operation, comparison.inputs.problem, kernel.name,
                  comparison.executor);
    const plan::Plan& plan = runner.plan();
    row.workspace_bytes = static_cast<double>(plan.workspace_bytes);
    row.predicted_bytes =
        kernel.predicted_traffic(plan.problem, plan.concurrency, comparison.sram_bytes);
    poison_outputs(comparison);
    problem::Traffic traffic;
    row.seconds = runner.run(&traffic, comparison.sram_bytes);
    runner.fetch();
    row.traffic_bytes = static_cast<double>(traffic.read_bytes + traffic.written_bytes);
    // The host cannot count traffic that depends on the contents of a device's memory.
    if (comparison.executor.on_cuda() && std::isnan(row.predicted_bytes)) row.traffic_bytes = NAN;
    row.error = standard.error(comparison.operation, comparison.inputs.problem);
    double total = row.seconds;
    for (int i = 1; i < kMostRuns && row.seconds < kSlowSeconds && total < kEnoughSeconds; ++i) {
      const double seconds = runner.run(nullptr, comparison.sram_bytes);
      row.seconds = std::min(row.seconds, seconds);
      total += seconds;
    }
  } catch (const UsageError& error) {
    row.skipped = error.what();
  }
  return row;
}

json number(double value) { return std::isnan(value) ? json(nullptr) : json(value); }

json row_json(const Row& row) {
  json result = {{"name", row.name},
                 {"seconds", number(row.seconds)},
                 {"workspace_bytes", number(row.workspace_bytes)},
                 {"traffic_bytes", number(row.traffic_bytes)},
                 {"predicted_traffic_bytes", number(row.predicted_bytes)},
                 {"max_abs_error", number(row.error.max)},
                 {"rms_error", number(row.error.rms)}};
  if (!row.skipped.empty()) result["skipped"] = row.skipped;
  return result;
}

std::string bytes_or_dash(double bytes) { return std::isnan(bytes) ? "-" : format_bytes(bytes); }

void print_rows(const std::vector<Row>& rows) {
  Table table({"kernel", "time", "extra memory", "traffic", "predicted", "max error", "rms error"});
  for (const Row& row : rows) {
    if (!row.skipped.empty()) continue;
    table.add({row.name, format_seconds(row.seconds), format_bytes(row.workspace_bytes),
               bytes_or_dash(row.traffic_bytes), bytes_or_dash(row.predicted_bytes),
               format_error(row.error.max), format_error(row.error.rms)});
  }
  fmt::print("{}", table.text());
  for (const Row& row : rows) {
    if (!row.skipped.empty()) fmt::print("{}: skipped: {}\n", row.name, row.skipped);
  }
}

Chart chart_of(const std::vector<Row>& rows, const char* title, double Row::*value,
               double tick_step, std::string (*format)(double)) {
  Chart chart;
  chart.title = title;
  chart.tick_step = tick_step;
  chart.format = format;
  for (const Row& row : rows) {
    ChartRow line;
    line.name = row.name;
    line.value = row.*value;
    line.highlighted = !row.is_rung;
    chart.rows.push_back(line);
  }
  return chart;
}

std::string plot(const std::string& subtitle, const std::vector<Row>& rows) {
  std::vector<Chart> charts = {
      chart_of(rows, "Time", &Row::seconds, 10, format_seconds),
      chart_of(rows, "Extra memory", &Row::workspace_bytes, 32, format_bytes),
      chart_of(rows, "Traffic to and from slow memory", &Row::traffic_bytes, 32, format_bytes),
      chart_of(rows, "Largest error against fp64", &Row::seconds, 10, format_error)};
  charts[2].marker_name = "predicted";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    charts[2].rows[i].marker = rows[i].predicted_bytes;
    charts[3].rows[i].value = rows[i].error.max;
  }
  return plot_svg("The same attention by every kernel", subtitle, charts);
}

std::string sizes_text(const problem::Problem& problem) {
  std::string text =
      fmt::format("{} {}  B={} Sq={} Sk={} H={} Hk={} D={} Dv={}",
                  problem.operation == Operation::kForward ? "forward" : "backward",
                  dtype_text(problem.dtype), problem.batch, problem.q_rows, problem.k_rows,
                  problem.heads, problem.kv_heads, problem.head_dim, problem.value_dim);
  if (problem.window_left >= 0 || problem.window_right >= 0) {
    text += problem.window_left < 0 && problem.window_right == 0
                ? " causal"
                : fmt::format(" window={},{}", problem.window_left, problem.window_right);
  }
  return text;
}

// Returns the kernels that --kernels names, or all. Kernels of instruction sets that this machine
// lacks are still rows; kernels of the other device are not.
std::vector<const problem::Kernel*> chosen_kernels(const Flags& flags, Operation operation,
                                                   bool on_cuda) {
  std::vector<const problem::Kernel*> kernels;
  if (!flags.given("kernels")) {
    for (const problem::Kernel* kernel : plan::kernels(operation)) {
      if ((kernel->device == TILEWISE_CUDA) == on_cuda) kernels.push_back(kernel);
    }
    return kernels;
  }
  const std::string list = flags.text("kernels");
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t comma = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, comma - begin);
    kernels.push_back(plan::find_kernel(operation, name.c_str()));
    if (kernels.back() == nullptr)
      throw UsageError(fmt::format("--kernels: {} is no kernel, tilewise info lists them", name));
    begin = comma + 1;
  }
  return kernels;
}

std::vector<Row> measure_all(const Comparison& comparison, const Standard& standard,
                             const std::vector<const problem::Kernel*>& kernels, bool quiet) {
  Progress progress(static_cast<std::int64_t>(kernels.size()), quiet);
  std::vector<Row> rows;
  for (const problem::Kernel* kernel : kernels) {
    progress.step(kernel->name);
    rows.push_back(measure(comparison, *kernel, standard));
  }
  const auto is_skipped = [](const Row& row) { return !row.skipped.empty(); };
  if (std::all_of(rows.begin(), rows.end(), is_skipped)) {
    throw UsageError(
        fmt::format("no kernel computes this; {}: {}", rows.back().name, rows.back().skipped));
  }
  return rows;
}

std::string setting_text(const Executor& executor, std::int64_t sram_bytes) {
  if (executor.on_cuda()) return "on cuda:0";
  return fmt::format("{} threads, fast memory of the ladder {}", executor.threads(),
                     format_bytes(static_cast<double>(sram_bytes)));
}

Inputs inputs_of_shape(const Flags& flags, bool backward, const Executor& executor) {
  const Inputs normal = make_inputs(flags, backward);
  const std::vector<verify::Data> data = data_flag(flags, normal.problem);
  if (data.size() != 1)
    throw UsageError(fmt::format("--data: is {}, must be one kind", flags.text("data")));
  return with_data(normal, data, *executor.get()).front();
}

int run(const Flags& flags) {
  const Operation operation =
      flags.choice("op", {"forward", "backward"}) == 0 ? Operation::kForward : Operation::kBackward;
  const std::int64_t sram_bytes =
      flags.integer("sram", 64, reference::kMaxSramBytes, problem::kDefaultSramBytes);
  const bool backward = operation == Operation::kBackward;
  if (flags.given("shape") && (flags.given("in") || flags.given("q"))) {
    throw UsageError(fmt::format("--shape: is {}, but inputs are given too", flags.text("shape")));
  }
  if (flags.given("data") && !flags.given("shape"))
    throw UsageError("--data: needs --shape, whose inputs are random");
  const Executor executor(flags);
  Inputs inputs =
      flags.given("shape") ? inputs_of_shape(flags, backward, executor) : read_inputs(flags);
  if (backward && !inputs.has("dout")) throw UsageError("--dout: missing, --op backward needs it");
  const auto kernels = chosen_kernels(flags, operation, executor.on_cuda());
  add_outputs(Operation::kForward, inputs);
  Runner forward(Operation::kForward, inputs.problem, "", executor);  // backward reads its results
  forward.run();
  forward.fetch();
  if (backward) add_outputs(Operation::kBackward, inputs);
  const Standard standard(operation, inputs.problem);
  const Comparison comparison = {operation, inputs, executor, sram_bytes};
  const std::vector<Row> rows = measure_all(comparison, standard, kernels, flags.given("json"));
  problem::Problem problem = forward.plan().problem;
  problem.operation = operation;
  const std::string subtitle = sizes_text(problem) + ", " + setting_text(executor, sram_bytes);
  if (flags.given("plot")) write_text(flags.text("plot"), plot(subtitle, rows));
  if (flags.given("json")) {
    json result = {{"rows", json::array()}, {"oracle", standard.description()}};
    result["threads"] = executor.threads();
    result["sram_bytes"] = sram_bytes;
    for (const Row& row : rows) result["rows"].push_back(row_json(row));
    fmt::print("{}\n", result.dump());
    return 0;
  }
  fmt::print("{}\nErrors against {}.\n\n", subtitle, standard.description());
  print_rows(rows);
  if (flags.given("plot")) fmt::print("\nplot: {}\n", flags.text("plot"));
  return 0;
}

}  // namespace

Command add_compare(CLI::App& program) {
  const auto flags = std::make_shared<Flags>(
      program, "compare", "run every kernel on one problem: time, memory, traffic, error");
  add_shape_flag(*flags);
  add_data_flag(*flags);
  add_file_flags(*flags);
  add_option_flags(*flags);
  flags->add_value("op", "forward|backward", "the pass to run; default forward");
  flags->add_value("kernels", "NAME,...", "run only these kernels; default: all of the device");
  flags->add_value("sram", "BYTES", "size of the ladder's fast memory; default 196608");
  flags->add_value("plot", "FILE", "write the table as an SVG chart");
  add_execution_flags(*flags);
  flags->add_switch("json", "print the table as JSON");
  flags->set_footer(
      "Kernels count their traffic at the loads and stores of tiles; with --device cuda the host\n"
      "counts the tiles of the launch. Predicted is the closed form of docs/ladder.md; for the "
      "cpu\n"
      "and cuda kernels, that of their algorithm with the blocks that they choose.\n"
      "Time is that of the fastest of several runs.\n"
      "Example: tilewise compare --shape 1,1024,1024,8,8,64 --causal --plot compare.svg");
  return {flags, [flags] { return run(*flags); }};
}

}  // namespace tilewise::cli
