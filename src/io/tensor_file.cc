#include "io/tensor_file.h"

#include "io/file_error.h"
#include "io/mapped_file.h"
#include "io/npz.h"
#include "io/safetensors.h"
#include "io/stream.h"

namespace tilewise::io {
namespace {

// A zip file begins with a member, or with the end record if it has none. As the length of a
// .safetensors header either would be too large.
bool is_zip(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text.starts_with("PK\3\4") || text.starts_with("PK\5\6");
}

}  // namespace

const Array* TensorFile::find(std::string_view name) const {
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor.array;
  }
  return nullptr;
}

TensorFile read_tensor_file(const std::string& path, const Wanted& wanted) {
  const Source source = map_file(path);
  return is_zip(source.bytes) ? parse_npz(source, wanted) : parse_safetensors(source);
}

TensorFile read_tensor_stream(int descriptor, const std::string& name) {
  const auto size_of = [](const Source& beginning) {
    if (is_zip(beginning.bytes)) {
      throw FileError(beginning.name,
                      "is an .npz file, which is not read from a pipe; write it to a file");
    }
    return safetensors_size(beginning);
  };
  return parse_safetensors(read_stream(descriptor, name, kSafetensorsBeginning, size_of));
}

}  // namespace tilewise::io
