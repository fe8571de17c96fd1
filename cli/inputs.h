// Makes a problem from flags and files.
#pragma once

#include <map>
#include <string>

#include "flags.h"
#include "io/array.h"
#include "problem/problem.h"

namespace tilewise::cli {

// Adds the flags that describe the problem: its options, and the tensors to read.
void add_option_flags(Flags& flags);
void add_file_flags(Flags& flags);
void add_execution_flags(Flags& flags);

// In place of a file: the standard input or output.
inline constexpr const char* kStandardStream = "-";

// Tensors by name, and the problem made of them. Nothing is copied: the problem points into the
// arrays.
struct Inputs {
  std::map<std::string, io::Array> arrays;  // q, k, v, dout, bias, ...; outputs are added later
  tilewise_problem problem;
  bool has(const std::string& name) const { return arrays.count(name) != 0; }
};

// Reads the files, casts to --dtype and sets the options. Throws UsageError or io::FileError.
Inputs read_inputs(const Flags& flags);

// Adds zeroed outputs of the operation that the problem does not have yet (forward: out, lse;
// backward: dq, dk, dv, and dbias and dsink if there is a bias and a sink).
void add_outputs(problem::Operation operation, Inputs& inputs);

// Returns the member of the problem that a tensor's name means. Throws UsageError if there is none.
tilewise_tensor tilewise_problem::*member_of(const std::string& name);

// Sets window and alignment from --causal, --window and --align, and the other options from theirs.
void read_options(const Flags& flags, tilewise_problem& problem);

// Returns the dtype that --dtype names, or `fallback` without it.
std::int32_t dtype_flag(const Flags& flags, std::int32_t fallback);
// Returns the dtype of k and v that --kv-dtype names, or `fallback`, which is that of q.
std::int32_t kv_dtype_flag(const Flags& flags, std::int32_t fallback);

}  // namespace tilewise::cli
