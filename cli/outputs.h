// Writes results to files, all of them or none.
#pragma once

#include <string>
#include <vector>

#include "inputs.h"

namespace tilewise::cli {

struct OutputTensor {
  std::string name;
  std::string path;
};

void add_output_flags(Flags& flags);

// Returns the outputs that the flags request, in a fixed order. Throws UsageError if they request
// nothing, name a file twice, or request a gradient without the tensor that it needs.
std::vector<OutputTensor> requested_outputs(const Flags& flags, const Inputs& inputs);

// True if one of them is the standard output, where nothing else must then be printed.
bool writes_standard_output(const Flags& flags, const std::vector<OutputTensor>& outputs);

// Writes the .npy files and --save. No file appears before all of them are on disk, and what goes
// to the standard output is written.
void write_outputs(const Flags& flags, const std::vector<OutputTensor>& outputs,
                   const Inputs& inputs);

// Writes a text file, which appears whole or not at all.
void write_text(const std::string& path, const std::string& text);

}  // namespace tilewise::cli
