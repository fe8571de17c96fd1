// tilewise info: what this build can do on this machine.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "machine.h"
#include "plan/description.h"

namespace tilewise::cli {
namespace {

using nlohmann::json;
using problem::Operation;

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

int run(const Flags& flags) {
  const plan::Host host = plan::this_host();
  if (!flags.given("json")) {
    fmt::print("{}", plan::description(host));
    return 0;
  }
  const json result = {{"version", tilewise_version()},
                       {"machine", machine_json(host)},
                       {"targets", targets_json()},
                       {"kernels",
                        {{"forward", kernels_json(Operation::kForward)},
                         {"backward", kernels_json(Operation::kBackward)}}}};
  fmt::print("{}\n", result.dump());
  return 0;
}

}  // namespace

Command add_info(CLI::App& program) {
  const auto flags =
      std::make_shared<Flags>(program, "info", "version, compiler, targets, CPU features, kernels");
  flags->add_switch("json", "as JSON on stdout");
  flags->set_footer("Example: tilewise info --json");
  return {flags, [flags] { return run(*flags); }};
}

}  // namespace tilewise::cli
