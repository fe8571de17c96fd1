// tilewise explain: predicts the traffic of each algorithm, and the time that it takes on this
// machine.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "calibrate/calibrate.h"
#include "commands.h"
#include "execution.h"
#include "explain_mask.h"
#include "explain_ranks.h"
#include "format.h"
#include "machine.h"
#include "mask_flags.h"
#include "random_inputs.h"
#include "reference/traffic.h"
#include "table.h"

namespace tilewise::cli {
namespace {

using nlohmann::json;
using problem::Operation;
using reference::Prediction;

struct Peaks {
  double flops;  // per second
  double read;   // bytes per second
  double ridge() const { return flops / read; }
};

struct Explained {
  const char* name;
  Prediction prediction;
  double arithmetic_seconds;
  double memory_seconds;
  double seconds() const { return std::max(arithmetic_seconds, memory_seconds); }
  const char* bound() const {
    return arithmetic_seconds >= memory_seconds ? "arithmetic" : "memory";
  }
};

// The closed forms know one size of a number, that of q, k, v and O.
void refuse_fp8(const Flags& flags) {
  if (flags.given("kv-dtype"))
    throw UsageError("--kv-dtype: given, but explain predicts k and v of the dtype of q");
  if (problem::is_fp8(dtype_flag(flags, TILEWISE_FP32))) {
    throw UsageError(fmt::format("--dtype: is \"{}\", explain predicts fp64, fp32, bf16 and fp16",
                                 flags.text("dtype")));
  }
}

reference::AttentionShape attention_shape(const Flags& flags) {
  if (!flags.given("shape")) throw UsageError("--shape: missing");
  const Shape sizes = shape_flag(flags);
  tilewise_problem options;
  tilewise_problem_init(&options);
  read_options(flags, options);
  reference::AttentionShape shape;
  shape.batch = sizes.batch;
  shape.q_len = sizes.q_len;
  shape.k_len = sizes.k_len;
  shape.heads = sizes.heads;
  shape.kv_heads = sizes.kv_heads;
  shape.head_dim = sizes.head_dim;
  shape.value_dim = sizes.value_dim;
  shape.element_size = problem::dtype_size(dtype_flag(flags, TILEWISE_FP32));
  shape.window_left = options.window_left;
  shape.window_right = options.causal ? 0 : options.window_right;
  shape.top_left = options.alignment == TILEWISE_TOP_LEFT;
  return shape;
}

std::vector<Explained> explain(Operation operation, const reference::AttentionShape& shape,
                               std::int64_t sram_bytes, const Peaks& peaks) {
  std::vector<Explained> rows;
  for (const reference::Algorithm algorithm : reference::kAlgorithms) {
    if (operation == Operation::kBackward && !reference::has_backward(algorithm)) continue;
    const Prediction prediction = reference::predict(algorithm, operation, shape, sram_bytes);
    rows.push_back({reference::algorithm_name(algorithm), prediction,
                    prediction.flops / peaks.flops, prediction.bytes() / peaks.read});
  }
  return rows;
}

json row_json(const Explained& row) {
  json tensors = json::array();
  for (const reference::TensorTraffic& tensor : row.prediction.rows()) {
    tensors.push_back({{"name", tensor.name},
                       {"read_bytes", tensor.read_bytes},
                       {"written_bytes", tensor.written_bytes}});
  }
  return {{"name", row.name},
          {"q_tile", row.prediction.tiles.q_rows},
          {"k_tile", row.prediction.tiles.k_rows},
          {"read_bytes", row.prediction.read_bytes()},
          {"written_bytes", row.prediction.written_bytes()},
          {"flops", row.prediction.flops},
          {"flops_per_byte", row.prediction.intensity()},
          {"predicted_seconds", row.seconds()},
          {"bound", row.bound()},
          {"tensors", tensors}};
}

void print_summary(const std::vector<Explained>& rows) {
  Table table(
      {"algorithm", "tile Br x Bc", "read", "written", "flop/byte", "predicted time", "bound by"});
  for (const Explained& row : rows) {
    const reference::TileSizes tiles = row.prediction.tiles;
    table.add(
        {row.name, tiles.q_rows == 0 ? "-" : fmt::format("{} x {}", tiles.q_rows, tiles.k_rows),
         format_bytes(row.prediction.read_bytes()), format_bytes(row.prediction.written_bytes()),
         fmt::format("{:.3g}", row.prediction.intensity()), format_seconds(row.seconds()),
         row.bound()});
  }
  fmt::print("{}", table.text());
}

// Prints a row for each tensor and a column for each algorithm: bytes read + written.
void print_tensors(const std::vector<Explained>& rows) {
  std::vector<std::string> names;
  std::vector<std::string> header = {"read + written"};
  for (const Explained& row : rows) {
    header.push_back(row.name);
    for (const reference::TensorTraffic& tensor : row.prediction.rows()) {
      if (std::find(names.begin(), names.end(), tensor.name) == names.end()) {
        names.push_back(tensor.name);
      }
    }
  }
  Table table(header);
  for (const std::string& name : names) {
    std::vector<std::string> line = {name};
    for (const Explained& row : rows) {
      std::string cell = "-";
      for (const reference::TensorTraffic& tensor : row.prediction.rows()) {
        if (name != tensor.name) continue;
        cell = fmt::format("{} + {}", format_bytes(tensor.read_bytes),
                           format_bytes(tensor.written_bytes));
      }
      line.push_back(cell);
    }
    table.add(line);
  }
  fmt::print("{}", table.text());
}

int run(const Flags& flags) {
  refuse_fp8(flags);
  if (flags.given("ranks")) {
    check_tile_flags(flags);
    return explain_ranks(flags);
  }
  check_simulation_flags(flags);
  if (is_about_the_mask(flags)) return explain_mask(flags);
  const reference::AttentionShape shape = attention_shape(flags);
  const Operation operation =
      flags.choice("op", {"forward", "backward"}) == 0 ? Operation::kForward : Operation::kBackward;
  const std::int64_t sram_bytes = flags.integer("sram", 1, INT64_MAX, problem::kDefaultSramBytes);
  const std::int32_t dtype = dtype_flag(flags, TILEWISE_FP32);
  const Executor executor(flags);
  const plan::Host machine = plan::this_host();
  const Peaks peaks = {calibrate::measure_flops(machine.target, dtype, executor.threads()),
                       calibrate::measure_read(machine.target, executor.threads())};
  const std::vector<Explained> rows = explain(operation, shape, sram_bytes, peaks);
  if (flags.given("json")) {
    json result = {{"sram_bytes", sram_bytes},
                   {"peak_gflops", peaks.flops * 1e-9},
                   {"read_gbytes_per_second", peaks.read * 1e-9},
                   {"ridge_flops_per_byte", peaks.ridge()},
                   {"threads", executor.threads()},
                   {"rows", json::array()}};
    for (const Explained& row : rows) result["rows"].push_back(row_json(row));
    fmt::print("{}\n", result.dump());
    return 0;
  }
  fmt::print("{} {} {}, fast memory {}\n\n", flags.text("shape"), dtype_text(dtype),
             operation == Operation::kForward ? "forward" : "backward",
             format_bytes(static_cast<double>(sram_bytes)));
  print_summary(rows);
  fmt::print("\nTraffic by tensor:\n\n");
  print_tensors(rows);
  fmt::print(
      "\nThis machine, measured now on {} threads: {} ({}), {} from memory.\n"
      "Ridge point: {:.3g} flop/byte. Below it memory is the limit, above it arithmetic.\n",
      executor.threads(), format_flops(peaks.flops), machine.target, format_rate(peaks.read),
      peaks.ridge());
  return 0;
}

}  // namespace

Command add_explain(CLI::App& program) {
  const auto flags = std::make_shared<Flags>(
      program, "explain", "predict traffic, tiles, intensity and time of each algorithm");
  add_shape_flag(*flags);
  add_option_flags(*flags);
  flags->add_value("op", "forward|backward", "the pass to explain; default forward");
  flags->add_value("sram", "BYTES", "size of the fast memory; default 196608");
  add_mask_flags(*flags);
  add_tile_flags(*flags);
  add_simulation_flags(*flags);
  add_execution_flags(*flags);
  flags->add_switch("json", "print the tables as JSON");
  flags->add_value("plot", "FILE",
                   "write an SVG: the mask with its tiles, or with --ranks the timelines");
  flags->set_footer(
      "The closed forms are those of docs/ladder.md. The predicted time is the larger of\n"
      "flops / peak and traffic / memory rate: a bound for perfect kernels, which those of the\n"
      "ladder do not reach.\n"
      "With --slices, --cu-seqlens-q, --tile or --plot, the mask is explained: the pairs of "
      "queries\n"
      "and keys that are visible, and those that tiles visit or skip (docs/masks.md). --shape may\n"
      "be left out with --slices.\n"
      "With --ranks, distributed schedules are simulated (docs/distributed-magi.md); B sequences,\n"
      "or those of --cu-seqlens-q, are one token axis that the ranks share.\n"
      "Example: tilewise explain --shape 1,4096,4096,1,1,128 --dtype fp16 --sram 101376\n"
      "         tilewise explain --slices slices.npy --tile 128,64 --plot mask.svg\n"
      "         tilewise explain --shape 1,65536,65536,32,8,128 --causal --ranks 8 --bandwidth 50");
  return {flags, [flags] { return run(*flags); }};
}

}  // namespace tilewise::cli
