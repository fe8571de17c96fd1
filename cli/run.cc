// tilewise run: computes forward, and backward if dout is given, from files to files.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "convert.h"
#include "execution.h"
#include "format.h"
#include "outputs.h"
#include "ranks.h"

namespace tilewise::cli {
namespace {

using nlohmann::json;
using problem::Operation;

struct Gradient {
  const char* name;
  tilewise_tensor tilewise_problem::*member;
};
constexpr Gradient kGradients[] = {{"dq", &tilewise_problem::dq},
                                   {"dk", &tilewise_problem::dk},
                                   {"dv", &tilewise_problem::dv},
                                   {"dbias", &tilewise_problem::dbias},
                                   {"dsink", &tilewise_problem::dsink}};

bool wants_gradients(const Flags& flags, const Inputs& inputs) {
  bool wanted = flags.given("save");
  for (const Gradient& gradient : kGradients) wanted = wanted || flags.given(gradient.name);
  return wanted && inputs.has("dout");
}

// Drops the gradients that no flag requests, so that they are not computed.
void drop_unwanted(const Flags& flags, Inputs& inputs) {
  if (flags.given("save")) return;
  for (const Gradient& gradient : kGradients) {
    if (!flags.given(gradient.name)) (inputs.problem.*gradient.member).rank = 0;
  }
}

json report(const Runner& runner, double seconds) {
  return {{"kernel", runner.kernel()},
          {"reason", runner.plan().reason},
          {"seconds", seconds},
          {"workspace_bytes", runner.plan().workspace_bytes}};
}

void print_report(std::FILE* to, const char* operation, const json& pass) {
  fmt::print(to, "{:<9} {:<14} {:>9}  workspace {}\n", operation, pass["kernel"].get<std::string>(),
             format_seconds(pass["seconds"].get<double>()),
             format_bytes(pass["workspace_bytes"].get<double>()));
}

void print_ranks(std::FILE* to, const char* operation, const json& pass) {
  double bytes = 0;
  for (const json& rank : pass["ranks"]) bytes = std::max(bytes, rank["sent_bytes"].get<double>());
  fmt::print(to, "{:<9} {} ranks {:>9}  at most {} sent by a rank\n", operation,
             pass["ranks"].size(), format_seconds(pass["seconds"].get<double>()),
             format_bytes(bytes));
}

// Writes the files, then prints the report.
int finish(const Flags& flags, const std::vector<OutputTensor>& outputs, const Inputs& inputs,
           json result) {
  write_outputs(flags, outputs, inputs);
  for (const OutputTensor& output : outputs) result["outputs"][output.name] = output.path;
  if (flags.given("save")) result["outputs"]["save"] = flags.text("save");
  std::FILE* const to = writes_standard_output(flags, outputs) ? stderr : stdout;
  if (flags.given("json")) {
    fmt::print(to, "{}\n", result.dump());
    return 0;
  }
  for (const char* pass : {"forward", "backward"}) {
    if (!result.contains(pass)) continue;
    result.contains("ranks") ? print_ranks(to, pass, result[pass])
                             : print_report(to, pass, result[pass]);
  }
  for (const auto& [name, path] : result["outputs"].items()) {
    fmt::print(to, "{:<9} {}\n", name == "save" ? "saved" : name, path.get<std::string>());
  }
  return 0;
}

int run_ranks(const Flags& flags, Inputs& inputs, const std::vector<OutputTensor>& outputs,
              const Executor& executor) {
  std::vector<Operation> passes = {Operation::kForward};
  add_outputs(Operation::kForward, inputs);
  if (wants_gradients(flags, inputs)) {
    add_outputs(Operation::kBackward, inputs);
    drop_unwanted(flags, inputs);
    passes.push_back(Operation::kBackward);
  }
  json result = run_on_ranks(flags, inputs.problem, passes, executor);
  return writes_results() ? finish(flags, outputs, inputs, std::move(result)) : 0;
}

int run(const Flags& flags) {
  Inputs inputs = read_inputs(flags);
  const std::vector<OutputTensor> outputs = requested_outputs(flags, inputs);
  const Executor executor(flags);
  if (runs_on_ranks(flags)) return run_ranks(flags, inputs, outputs, executor);
  const std::string kernel = flags.text("kernel");
  add_outputs(Operation::kForward, inputs);
  Runner forward(Operation::kForward, inputs.problem, kernel, executor);
  // Both passes are planned before either runs, so that a refusal costs no time.
  std::unique_ptr<Runner> backward;
  if (wants_gradients(flags, inputs)) {
    add_outputs(Operation::kBackward, inputs);
    drop_unwanted(flags, inputs);
    backward = std::make_unique<Runner>(Operation::kBackward, inputs.problem, kernel, executor);
  }
  json result = {{"threads", executor.threads()}};
  result["forward"] = report(forward, forward.run());
  forward.fetch();
  if (backward) {
    backward->send();  // out and lse
    result["backward"] = report(*backward, backward->run());
    backward->fetch();
  }
  return finish(flags, outputs, inputs, std::move(result));
}

}  // namespace

Command add_run(CLI::App& program) {
  const auto flags =
      std::make_shared<Flags>(program, "run", "compute attention from files to files");
  add_file_flags(*flags);
  add_output_flags(*flags);
  add_option_flags(*flags);
  flags->add_value("kernel", "NAME", "force a kernel (tilewise info lists them)");
  add_execution_flags(*flags);
  add_rank_flags(*flags);
  flags->add_switch("json", "print the report as JSON");
  flags->set_footer(
      "Files are .npy (V2 is bf16), or .safetensors or .npz for --in and --save. - is the "
      "standard\n"
      "input or output: .npy, .safetensors for --in and --save. If anything fails, no file is "
      "written.\n"
      "Examples:\n"
      "  tilewise run --q q.npy --k k.npy --v v.npy --causal --out out.npy --lse lse.npy\n"
      "  tilewise run --in qkv.safetensors --window 128,0 --dtype bf16 --save out.safetensors");
  return {flags, [flags] { return run(*flags); }};
}

}  // namespace tilewise::cli
