#include "outputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "io/npy.h"
#include "io/npz.h"
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
    {"out", nullptr, "attention output, in the dtype of q (bf16 for fp8)"},
    {"lse", nullptr, "log-sum-exp (B, H, Sq) or (H, T): fp32, fp64 for fp64"},
    {"dq", "dout", "gradient of q"},
    {"dk", "dout", "gradient of k"},
    {"dv", "dout", "gradient of v"},
    {"dbias", "bias", "gradient of the bias"},
    {"dsink", "sink", "gradient of the sink"},
};

io::OutputFile stage(const std::string& path, const io::TensorFile& file) {
  return path.ends_with(".npz") ? io::stage_npz(path, file) : io::stage_safetensors(path, file);
}

io::TensorFile all_outputs(const Inputs& inputs) {
  io::TensorFile file;
  for (const OutputFlag& output : kOutputs) {
    if (inputs.has(output.name))
      file.tensors.push_back({output.name, inputs.arrays.at(output.name)});
  }
  return file;
}

// Writes the output whose file is the standard output, if there is one.
void write_to_standard_output(const Flags& flags, const std::vector<OutputTensor>& outputs,
                              const Inputs& inputs) {
  if (!writes_standard_output(flags, outputs)) return;
  io::OutputFile stream = io::OutputFile::standard_output();
  for (const OutputTensor& output : outputs) {
    if (output.path == kStandardStream) io::write_npy(stream, inputs.arrays.at(output.name));
  }
  if (flags.text("save") == kStandardStream)
    io::write_safetensors(stream, "standard output", all_outputs(inputs));
  stream.commit();
}

}  // namespace

bool writes_standard_output(const Flags& flags, const std::vector<OutputTensor>& outputs) {
  return flags.text("save") == kStandardStream ||
         std::any_of(outputs.begin(), outputs.end(),
                     [](const OutputTensor& output) { return output.path == kStandardStream; });
}

void add_output_flags(Flags& flags) {
  flags.begin_group("Outputs");
  for (const OutputFlag& output : kOutputs) {
    flags.add_value(output.name, "FILE", output.help);
  }
  flags.add_value("save", "FILE", "a .safetensors (or .npz) file with all outputs");
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
    if (output.path != kStandardStream)
      files.push_back(io::stage_npy(output.path, inputs.arrays.at(output.name)));
  }
  if (flags.given("save") && flags.text("save") != kStandardStream)
    files.push_back(stage(flags.text("save"), all_outputs(inputs)));
  write_to_standard_output(flags, outputs, inputs);
  for (io::OutputFile& file : files) file.commit();
}

void write_text(const std::string& path, const std::string& text) {
  io::OutputFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace tilewise::cli
