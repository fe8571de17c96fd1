// Any bytes give tensors or a FileError. Tensors that were read are written and read again, and
// must be the same. Checksums are part of the format, so few inputs come far beyond the directory.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "io/file_error.h"
#include "io/npz.h"

namespace {

namespace io = tilewise::io;

void require(bool condition) {
  if (!condition) std::abort();
}

bool same(const io::NamedTensor& a, const io::NamedTensor& b) {
  return a.name == b.name && a.array.type == b.array.type && a.array.shape == b.array.shape &&
         std::equal(a.array.bytes.begin(), a.array.bytes.end(), b.array.bytes.begin(),
                    b.array.bytes.end());
}

io::TensorFile parse(std::span<const std::byte> bytes) {
  return io::parse_npz({bytes, nullptr, "npz data"}, [](std::string_view) { return true; });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  io::TensorFile file;
  try {
    file = parse(std::as_bytes(std::span(data, size)));
  } catch (const io::FileError& error) {
    require(std::string(error.what()).starts_with("npz data: "));
    return 0;
  }
  const std::string bytes = io::format_npz(file, "npz data");
  const io::TensorFile again = parse(std::as_bytes(std::span(bytes)));
  require(std::equal(again.tensors.begin(), again.tensors.end(), file.tensors.begin(),
                     file.tensors.end(), same));
  return 0;
}
