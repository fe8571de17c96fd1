// tilewise info: what this build can do on this machine.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "cpu/targets.h"
#include "cuda/runtime.h"
#include "cuda/sm80/config.h"
#include "cuda/sm90/config.h"
#include "machine.h"
#include "plan/plan.h"
#include "plan/registry.h"

namespace tilewise::cli {
namespace {

using nlohmann::json;
using problem::Operation;

json list_targets() {
  json targets = json::array();
  for (const cpu::Target* target = cpu::kTargets; target->name != nullptr; ++target) {
    targets.push_back(
        {{"name", target->name}, {"needs", target->needs}, {"available", target->available()}});
  }
  return targets;
}

// Whether the machine can run a kernel at all, asked with an empty problem of the dtype that all
// kernels have.
json list_kernels(Operation operation) {
  problem::Machine machine = {nullptr, 1};
  problem::Problem empty;
  empty.dtype = TILEWISE_BF16;
  json kernels = json::array();
  for (const problem::Kernel* kernel : plan::kernels(operation)) {
    empty.device = kernel->device;
    const bool usable = kernel->supports(empty, machine) == TILEWISE_OK;
    kernels.push_back({{"name", kernel->name},
                       {"description", kernel->description},
                       {"available", usable},
                       {"why_not", usable ? "" : problem::message()}});
  }
  return kernels;
}

void print_list(const char* title, const json& rows, const char* text) {
  fmt::print("\n{}\n", title);
  for (const json& row : rows) {
    const bool available = row["available"].get<bool>();
    fmt::print("  {} {:<15} {}\n", available ? "+" : "-", row["name"].get<std::string>(),
               row[available || !row.contains("why_not") ? text : "why_not"].get<std::string>());
  }
}

// The tables that choose tiles, with the reason for each row.
json list_tiles() {
  json rows = json::array();
  for (const cuda::sm90::TileRow& row : cuda::sm90::kTiles) {
    rows.push_back({{"kernel", "cuda_sm90"},
                    {"head_dim", row.head_dim},
                    {"q_tile", row.q_tile},
                    {"k_tile", row.k_tile},
                    {"stages", row.stages},
                    {"reason", row.reason}});
  }
  for (const cuda::sm80::TileRow& row : cuda::sm80::kTiles) {
    rows.push_back({{"kernel", row.general ? "cuda_sm80, any score" : "cuda_sm80"},
                    {"head_dim", row.columns},
                    {"shared_bytes", row.shared_bytes},
                    {"q_tile", row.config(false).q_tile()},
                    {"k_tile", row.k_tile},
                    {"stages", row.stages},
                    {"reason", row.reason}});
  }
  return rows;
}

int print_tiles(const Flags& flags) {
  const json rows = list_tiles();
  if (flags.given("json")) {
    fmt::print("{}\n", rows.dump());
    return 0;
  }
  fmt::print("{:<21} {:>5} {:>8} {:>6} {:>6}  {}\n", "kernel", "D to", "queries", "keys", "stages",
             "why");
  for (const json& row : rows) {
    fmt::print("{:<21} {:>5} {:>8} {:>6} {:>6}  {}\n", row["kernel"].get<std::string>(),
               row["head_dim"].get<int>(), row["q_tile"].get<int>(), row["k_tile"].get<int>(),
               row["stages"].get<int>(), row["reason"].get<std::string>());
  }
  return 0;
}

std::string cuda_devices() {
  std::string text;
  cuda::DeviceInfo device;
  for (std::int32_t index = 0; index < cuda::device_count(); ++index) {
    if (cuda::find_device(index, &device) != TILEWISE_OK) continue;
    text += fmt::format(", cuda:{} ({}, compute capability {}.{})", index, device.name,
                        device.major, device.minor);
  }
  if (text.empty() && cuda::find_device(0, &device) != TILEWISE_OK)
    text = fmt::format(" ({})", problem::message());
  return text;
}

int run(const Flags& flags) {
  if (flags.given("kernels")) return print_tiles(flags);
  const Machine machine = this_machine();
  json result = {{"version", tilewise_version()},
                 {"machine", machine_json(machine)},
                 {"targets", list_targets()},
                 {"kernels",
                  {{"forward", list_kernels(Operation::kForward)},
                   {"backward", list_kernels(Operation::kBackward)}}}};
  if (flags.given("json")) {
    fmt::print("{}\n", result.dump());
    return 0;
  }
  fmt::print("Tilewise {}\n", tilewise_version());
  fmt::print("compiler  {}\n", machine.compiler);
  fmt::print("system    {}\n", machine.system);
  fmt::print("cpu       {}, {} usable\n", machine.cpu, machine.cpus);
  fmt::print("features  {}\n", machine.features);
  fmt::print("devices   cpu{}\n", cuda_devices());
  print_list("Instruction sets, best first (force one with TILEWISE_CPU_TARGET):",
             result["targets"], "needs");
  print_list("Kernels, forward, in order of preference (force one with TILEWISE_KERNEL):",
             result["kernels"]["forward"], "description");
  print_list("Kernels, backward:", result["kernels"]["backward"], "description");
  return 0;
}

}  // namespace

Command add_info(CLI::App& program) {
  const auto flags =
      std::make_shared<Flags>(program, "info", "version, compiler, targets, CPU features, kernels");
  flags->add_switch("json", "as JSON on stdout");
  flags->add_switch("kernels", "the tables that choose the tiles of the CUDA kernels, and why");
  flags->set_footer("Example: tilewise info --json");
  return {flags, [flags] { return run(*flags); }};
}

}  // namespace tilewise::cli
