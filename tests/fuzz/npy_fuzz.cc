// Any bytes give an array or a FileError. An array that was read is written and read again, and
// must be the same.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "io/file_error.h"
#include "io/npy.h"

namespace {

namespace io = tilewise::io;

void require(bool condition) {
  if (!condition) std::abort();
}

bool same(const io::Array& a, const io::Array& b) {
  return a.type == b.type && a.shape == b.shape &&
         std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end());
}

std::string format(const io::Array& array) {
  std::string file = io::npy_preamble(array);
  for (const std::byte byte : array.bytes) file += static_cast<char>(byte);
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  io::Array array;
  try {
    array = io::parse_npy(std::as_bytes(std::span(data, size)));
  } catch (const io::FileError& error) {
    require(std::string(error.what()).starts_with("npy data: "));
    return 0;
  }
  require(io::byte_size(array.type, array.shape) == static_cast<std::int64_t>(array.bytes.size()));
  const std::string file = format(array);
  const io::Array again = io::parse_npy(std::as_bytes(std::span(file)));
  require(same(again, array));
  return 0;
}
