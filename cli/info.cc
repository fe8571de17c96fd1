// tilewise info: prints what this build can do on this machine.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "cuda/backward/fp32/kernel_table.h"
#include "cuda/backward/sm80/kernel_table.h"
#include "cuda/forward/fp32/kernel_table.h"
#include "cuda/forward/sm80/kernel_table.h"
#include "cuda/forward/sm90/fp8/kernel_table.h"
#include "cuda/forward/sm90/kernel_table.h"
#include "cuda/ladder/kernel_table.h"
#include "machine.h"
#include "plan/description.h"
#include "plan/thread_count.h"

namespace tilewise::cli {
namespace {

using nlohmann::json;
using problem::Operation;

// The number of threads of the default pool, and the environment variable that gives it or null.
json threads_json() {
  plan::ThreadCount count;
  if (plan::read_thread_count(&count) != TILEWISE_OK) return {{"error", problem::message()}};
  return {{"count", count.threads},
          {"variable", count.variable != nullptr ? json(count.variable) : json(nullptr)}};
}

json targets_json() {
  json rows = json::array();
  for (const plan::Listed& row : plan::listed_targets())
    rows.push_back({{"name", row.name}, {"needs", row.text}, {"available", row.available}});
  return rows;
}

json kernels_json(Operation operation) {
  json rows = json::array();
  for (const plan::Listed& row : plan::listed_kernels(operation)) {
    rows.push_back({{"name", row.name},
                    {"description", row.text},
                    {"available", row.available},
                    {"why_not", row.why_not}});
  }
  return rows;
}

json tile_json(const char* kernel, const cuda::sm80::TileRow& row) {
  return {{"kernel", kernel},
          {"head_dim", row.columns},
          {"shared_bytes", row.shared_bytes},
          {"least_keys", row.least_keys},
          {"q_tile", row.config(false).q_tile()},
          {"k_tile", row.k_tile},
          {"stages", row.stages},
          {"reason", row.reason}};
}

json gradient_tile_json(const char* kernel, const cuda::backward::sm80::TileRow& row) {
  return {{"kernel", kernel},     {"head_dim", row.columns}, {"shared_bytes", row.shared_bytes},
          {"q_tile", row.q_tile}, {"k_tile", row.k_tile},    {"stages", row.stages},
          {"reason", row.reason}};
}

// Returns the tables that choose tiles, with the reason for each row.
json list_tiles() {
  json rows = json::array();
  for (const cuda::sm90::KernelRow& row : cuda::sm90::kKernels) {
    if (row.variant != cuda::sm90::Variant::kPlain) continue;  // variants are left out
    rows.push_back({{"kernel", "cuda_sm90"},
                    {"head_dim", row.head_dim},
                    {"most_keys", row.max_keys},
                    {"most_seen", row.max_visible},
                    {"q_tile", row.q_tile},
                    {"k_tile", row.k_tile},
                    {"stages", row.k_stages},
                    {"reason", row.reason}});
  }
  for (const cuda::sm90::Fp8KernelRow& row : cuda::sm90::kFp8Kernels) {
    rows.push_back({{"kernel", row.score_mod ? "cuda_sm90, fp8, any score" : "cuda_sm90, fp8"},
                    {"head_dim", row.head_dim},
                    {"q_tile", row.config(false).q_tile},
                    {"k_tile", row.config(false).k_tile},
                    {"stages", row.k_stages},
                    {"reason", row.reason}});
  }
  for (const cuda::sm80::TileRow& row : cuda::sm80::kKernels)
    rows.push_back(tile_json(row.score_mod ? "cuda_sm80, any score" : "cuda_sm80", row));
  for (const cuda::fp32::TileRow& row : cuda::fp32::kKernels) {
    rows.push_back({{"kernel", row.score_mod ? "cuda_fp32, any score" : "cuda_fp32"},
                    {"head_dim", row.columns},
                    {"shared_bytes", row.shared_bytes},
                    {"q_tile", row.config().q_tile()},
                    {"k_tile", row.k_tile},
                    {"stages", 1},
                    {"reason", row.reason}});
  }
  for (const cuda::backward::sm80::TileRow& row : cuda::backward::sm80::kKernels) {
    rows.push_back(gradient_tile_json(
        row.score_mod ? "cuda_sm80 backward, any score" : "cuda_sm80 backward", row));
  }
  for (const cuda::backward::fp32::TileRow& row : cuda::backward::fp32::kKernels) {
    rows.push_back({{"kernel", "cuda_fp32 backward"},
                    {"head_dim", row.columns},
                    {"shared_bytes", row.shared_bytes},
                    {"q_tile", row.q_tile},
                    {"k_tile", row.k_tile},
                    {"stages", 1},
                    {"reason", row.reason}});
  }
  for (const cuda::backward::sm80::TileRow& row : cuda::ladder::kFlash1Gradients)
    rows.push_back(gradient_tile_json("cuda_flash1 backward", row));
  for (const cuda::sm80::TileRow& row : cuda::ladder::kFlash1Kernels)
    rows.push_back(tile_json("cuda_flash1", row));
  for (const cuda::sm80::TileRow& row : cuda::ladder::kStandardKernels)
    rows.push_back(tile_json("cuda_standard", row));
  return rows;
}

int print_tiles(const Flags& flags) {
  const json rows = list_tiles();
  if (flags.given("json")) {
    fmt::print("{}\n", rows.dump());
    return 0;
  }
  fmt::print("{:<30} {:>5} {:>8} {:>6} {:>6}  {}\n", "kernel", "D to", "queries", "keys", "stages",
             "why");
  for (const json& row : rows) {
    fmt::print("{:<30} {:>5} {:>8} {:>6} {:>6}  {}\n", row["kernel"].get<std::string>(),
               row["head_dim"].get<int>(), row["q_tile"].get<int>(), row["k_tile"].get<int>(),
               row["stages"].get<int>(), row["reason"].get<std::string>());
  }
  return 0;
}

int run(const Flags& flags) {
  if (flags.given("kernels")) return print_tiles(flags);
  const plan::Host host = plan::this_host();
  if (!flags.given("json")) {
    fmt::print("{}", plan::description(host));
    return 0;
  }
  const json result = {{"version", tilewise_version()},
                       {"machine", machine_json(host)},
                       {"threads", threads_json()},
                       {"targets", targets_json()},
                       {"kernels",
                        {{"forward", kernels_json(Operation::kForward)},
                         {"backward", kernels_json(Operation::kBackward)}}}};
  fmt::print("{}\n", result.dump());
  return 0;
}

}  // namespace

Command add_info(CLI::App& program) {
  const auto flags = std::make_shared<Flags>(program, "info",
                                             "print version, compiler, instruction sets, kernels");
  flags->add_switch("json", "print the description as JSON");
  flags->add_switch("kernels", "print the tile sizes of the CUDA kernels, and their reasons");
  flags->set_footer("Example: tilewise info --json");
  return {flags, [flags] { return run(*flags); }};
}

}  // namespace tilewise::cli
