// Any bytes give tensors or a FileError. Tensors that were read are written and read again, and
// must be the same.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "io/file_error.h"
#include "io/safetensors.h"

namespace {

namespace io = tilewise::io;

void require(bool condition) {
  if (!condition) std::abort();
}

bool same(const io::Array& a, const io::Array& b) {
  return a.type == b.type && a.shape == b.shape &&
         std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end());
}

// Writing may change the order of the tensors and the spelling of a header, but not its meaning.
void require_same(const io::TensorFile& again, const io::TensorFile& file) {
  require(again.metadata == file.metadata);
  require(again.tensors.size() == file.tensors.size());
  for (const io::NamedTensor& tensor : file.tensors) {
    const io::Array* array = again.find(tensor.name);
    require(array != nullptr && same(*array, tensor.array));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  io::TensorFile file;
  try {
    file = io::parse_safetensors(std::as_bytes(std::span(data, size)));
  } catch (const io::FileError& error) {
    require(std::string(error.what()).starts_with("safetensors data: "));
    return 0;
  }
  const std::string written = io::format_safetensors(file);
  const io::TensorFile again = io::parse_safetensors(std::as_bytes(std::span(written)));
  require_same(again, file);
  require(io::format_safetensors(again) == written);
  return 0;
}
