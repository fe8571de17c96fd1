#include "outputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "io/npy.h"
#include "io/output_file.h"
#include "io/safetensors.h"

namespace tilewise::cli {
namespace {

struct OutputFlag {
  const char* name;   // of the flag and of the tensor
  const char* needs;  // the input that this output requires, or nullptr
  const char* help;
};
constexpr OutputFlag kOutputs[] = {
    {"out", nullptr, "attention output, in the dtype of q"},
    {"lse", nullptr, "log-sum-exp (B, H, Sq) or (H, T): fp32, fp64 for fp64"},
    {"dq", "dout", "gradient of q"},
    {"dk", "dout", "gradient of k"},
    {"dv", "dout", "gradient of v"},
    {"dbias", "bias", "gradient of the bias"},
    {"dsink", "sink", "gradient of the sink"},
};

}  // namespace

void add_output_flags(Flags& flags) {
  flags.begin_group("Outputs");
  for (const OutputFlag& output : kOutputs) {
    flags.add_value(output.name, "FILE", output.help);
  }
  flags.add_value("save", "FILE", "a .safetensors file with all outputs");
}

std::vector<OutputTensor> requested_outputs(const Flags& flags, const Inputs& inputs) {
  std::vector<OutputTensor> outputs;
  std::set<std::string> paths;
  if (flags.given("save")) paths.insert(flags.text("save"));
  for (const OutputFlag& output : kOutputs) {
    if (!flags.given(output.name)) continue;
    const bool gradient = output.name[0] == 'd';
    for (const char* needed : {gradient ? "dout" : nullptr, output.needs}) {
      if (needed == nullptr || inputs.has(needed)) continue;
      throw UsageError(fmt::format("--{}: needs --{}", output.name, needed));
    }
    const std::string path = flags.text(output.name);
    if (!paths.insert(path).second) {
      throw UsageError(
          fmt::format("--{}: {} is also the file of another output", output.name, path));
    }
    outputs.push_back({output.name, path});
  }
  if (outputs.empty() && !flags.given("save")) {
    throw UsageError("--out: missing (or --save FILE): there is nothing to write");
  }
  return outputs;
}

void write_outputs(const Flags& flags, const std::vector<OutputTensor>& outputs,
                   const Inputs& inputs) {
  std::vector<io::OutputFile> files;
  files.reserve(outputs.size() + 1);
  for (const OutputTensor& output : outputs) {
    files.push_back(io::stage_npy(output.path, inputs.arrays.at(output.name)));
  }
  if (flags.given("save")) {
    io::TensorFile file;
    for (const OutputFlag& output : kOutputs) {
      if (inputs.has(output.name)) {
        file.tensors.push_back({output.name, inputs.arrays.at(output.name)});
      }
    }
    files.push_back(io::stage_safetensors(flags.text("save"), file));
  }
  for (io::OutputFile& file : files) file.commit();
}

void write_text(const std::string& path, const std::string& text) {
  io::OutputFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace tilewise::cli
