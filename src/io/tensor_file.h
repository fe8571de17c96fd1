// Named tensors in one file: what .safetensors and .npz files hold.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/array.h"

namespace tilewise::io {

struct NamedTensor {
  std::string name;
  Array array;
};

struct TensorFile {
  std::vector<NamedTensor> tensors;                           // in the order of the file
  std::vector<std::pair<std::string, std::string>> metadata;  // of a .safetensors file

  // Returns nullptr if no tensor has that name.
  const Array* find(std::string_view name) const;
};

// Says which tensors of a file are read; the others cost no time.
using Wanted = std::function<bool(std::string_view name)>;

// Reads a .safetensors or an .npz file, told apart by its first bytes. Throws FileError.
TensorFile read_tensor_file(const std::string& path, const Wanted& wanted);

// Reads a .safetensors file from a pipe, to its end. An .npz file is refused: its directory is at
// its end, so that nothing could be checked before all of it is in memory.
TensorFile read_tensor_stream(int descriptor, const std::string& name);

}  // namespace tilewise::io
