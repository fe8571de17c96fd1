#include "io/npy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "io/file_error.h"
#include "io/mapped_file.h"
#include "io/npy_header.h"

namespace tilewise::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kVersionEnd = kMagic.size() + 2;
constexpr std::size_t kDataAlignment = 64;

struct Extent {
  std::size_t begin;
  std::size_t size;
};

// Returns the position of the header's text in the file.
Extent header_extent(const Source& source) {
  const std::span<const std::byte> bytes = source.bytes;
  if (bytes.size() < kVersionEnd || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    throw FileError(source.name, "is not an .npy file: it does not begin with \\x93NUMPY");
  }
  const auto major = std::to_integer<unsigned>(bytes[kMagic.size()]);
  const auto minor = std::to_integer<unsigned>(bytes[kMagic.size() + 1]);
  if (major < 1 || major > 3 || minor != 0) {
    throw FileError(source.name, "npy version is " + std::to_string(major) + "." +
                                     std::to_string(minor) + ", expected 1.0, 2.0 or 3.0");
  }
  const std::size_t width = major == 1 ? 2 : 4;
  const std::size_t begin = kVersionEnd + width;
  if (bytes.size() < begin) throw FileError(source.name, "npy header is cut short");
  std::size_t size = 0;
  for (std::size_t i = 0; i < width; ++i) {
    size |= std::to_integer<std::size_t>(bytes[kVersionEnd + i]) << (8 * i);
  }
  if (size > kMaxNpyHeader) {
    throw FileError(source.name, "npy header length is " + std::to_string(size) + ", at most " +
                                     std::to_string(kMaxNpyHeader) + " is read");
  }
  if (size > bytes.size() - begin) {
    throw FileError(source.name, "npy header length is " + std::to_string(size) +
                                     ", the file has " + std::to_string(bytes.size() - begin) +
                                     " bytes left");
  }
  return {begin, size};
}

// Returns the C-order array of Fortran-order bytes: it visits the elements of the result in order
// and reads them with the strides of the source.
template <class Element>
void transpose_elements(std::span<const std::int64_t> shape, const std::byte* from, std::byte* to,
                        std::size_t count) {
  const std::size_t rank = shape.size();
  std::array<std::size_t, kMaxRank> stride = {};  // of the source, in bytes
  std::array<std::size_t, kMaxRank> index = {};
  std::size_t step = sizeof(Element);
  for (std::size_t axis = 0; axis < rank; ++axis) {
    stride[axis] = step;
    step *= static_cast<std::size_t>(shape[axis]);
  }
  std::size_t offset = 0;
  for (std::size_t element = 0; element < count; ++element) {
    std::memcpy(to + element * sizeof(Element), from + offset, sizeof(Element));
    for (std::size_t axis = rank; axis-- > 0;) {
      offset += stride[axis];
      if (++index[axis] < static_cast<std::size_t>(shape[axis])) break;
      offset -= index[axis] * stride[axis];
      index[axis] = 0;
    }
  }
}

Array from_fortran_order(const NpyHeader& header, std::span<const std::byte> data) {
  Array array = make_array(header.type, header.shape);
  const auto size = static_cast<std::size_t>(element_size(header.type));
  const std::size_t count = data.size() / size;
  std::byte* to = array.writable.data();
  if (size == 1) transpose_elements<std::uint8_t>(header.shape, data.data(), to, count);
  if (size == 2) transpose_elements<std::uint16_t>(header.shape, data.data(), to, count);
  if (size == 4) transpose_elements<std::uint32_t>(header.shape, data.data(), to, count);
  if (size == 8) transpose_elements<std::uint64_t>(header.shape, data.data(), to, count);
  return array;
}

Array parse(const Source& source) {
  const Extent extent = header_extent(source);
  const std::string_view text(reinterpret_cast<const char*>(source.bytes.data()) + extent.begin,
                              extent.size);
  const NpyHeader header = parse_npy_header(text, source.name);
  const std::span<const std::byte> data = source.bytes.subspan(extent.begin + extent.size);
  const std::optional<std::int64_t> size = byte_size(header.type, header.shape);
  if (!size || static_cast<std::uint64_t>(*size) != data.size()) {
    throw FileError(source.name,
                    "shape " + shape_text(header.shape) + " of " +
                        std::string(element_name(header.type)) + " needs " +
                        (size ? std::to_string(*size) : std::string("more than 2^63 - 1")) +
                        " bytes of data, the file has " + std::to_string(data.size()));
  }
  try {
    if (header.fortran_order && header.shape.size() > 1) return from_fortran_order(header, data);
    return view_array(header.type, header.shape, data, source.owner);
  } catch (const std::bad_alloc&) {
    throw FileError(source.name, "no memory for " + std::to_string(data.size()) + " bytes");
  }
}

}  // namespace

Array read_npy(const std::string& path) { return parse(map_file(path)); }

Array parse_npy(std::span<const std::byte> bytes) { return parse({bytes, nullptr, "npy data"}); }

std::string npy_preamble(const Array& array) {
  std::string header = format_npy_header({array.type, false, array.shape});
  // NumPy pads by a whole 64 bytes where none are needed; kMaxRank keeps the length far below the
  // 65535 of version 1.
  const std::size_t unpadded = kVersionEnd + 2 + header.size() + 1;
  header.append(kDataAlignment - unpadded % kDataAlignment, ' ');
  header += '\n';
  std::string preamble(kMagic);
  preamble +=
      {'\1', '\0', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  return preamble + header;
}

OutputFile stage_npy(const std::string& path, const Array& array) {
  check_complete(array, path);
  OutputFile file(path);
  file.write(npy_preamble(array));
  file.write(array.bytes);
  return file;
}

void write_npy(const std::string& path, const Array& array) { stage_npy(path, array).commit(); }

}  // namespace tilewise::io
