#include "io/npy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "io/file_error.h"
#include "io/mapped_file.h"
#include "io/npy_header.h"
#include "io/stream.h"

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

// The header of a file, and where its data lies.
struct Layout {
  NpyHeader header;
  std::size_t data_begin;
  std::optional<std::int64_t> data_size;  // nothing: more than int64 holds
};

Layout layout_of(const Source& beginning) {
  const Extent extent = header_extent(beginning);
  const std::string_view text(reinterpret_cast<const char*>(beginning.bytes.data()) + extent.begin,
                              extent.size);
  Layout layout = {parse_npy_header(text, beginning.name), extent.begin + extent.size, {}};
  layout.data_size = byte_size(layout.header.type, layout.header.shape);
  return layout;
}

// file_size: of the whole file
void check_size(const Layout& layout, std::uint64_t file_size, const std::string& name) {
  const std::uint64_t size = file_size - layout.data_begin;
  if (layout.data_size && static_cast<std::uint64_t>(*layout.data_size) == size) return;
  const std::string needed =
      layout.data_size ? std::to_string(*layout.data_size) : std::string("more than 2^63 - 1");
  throw FileError(name, "shape " + shape_text(layout.header.shape) + " of " +
                            std::string(element_name(layout.header.type)) + " needs " + needed +
                            " bytes of data, the file has " + std::to_string(size));
}

}  // namespace

Array parse_npy(const Source& source) {
  const Layout layout = layout_of(source);
  check_size(layout, source.bytes.size(), source.name);
  const NpyHeader& header = layout.header;
  const std::span<const std::byte> data = source.bytes.subspan(layout.data_begin);
  try {
    if (header.fortran_order && header.shape.size() > 1) return from_fortran_order(header, data);
    return view_array(header.type, header.shape, data, source.owner);
  } catch (const std::bad_alloc&) {
    throw FileError(source.name, "no memory for " + std::to_string(data.size()) + " bytes");
  }
}

Array read_npy(const std::string& path) { return parse_npy(map_file(path)); }

Array parse_npy(std::span<const std::byte> bytes) {
  return parse_npy({bytes, nullptr, "npy data"});
}

Array read_npy_stream(int descriptor, const std::string& name) {
  const auto size_of = [](const Source& beginning) {
    const Layout layout = layout_of(beginning);
    if (!layout.data_size) check_size(layout, beginning.bytes.size(), beginning.name);
    return layout.data_begin + static_cast<std::uint64_t>(*layout.data_size);
  };
  return parse_npy(read_stream(descriptor, name, kNpyBeginning, size_of));
}

void check_npy_size(const Source& beginning, std::uint64_t size) {
  check_size(layout_of(beginning), size, beginning.name);
}

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
  write_npy(file, array);
  return file;
}

void write_npy(OutputFile& file, const Array& array) {
  file.write(npy_preamble(array));
  file.write(array.bytes);
}

void write_npy(const std::string& path, const Array& array) { stage_npy(path, array).commit(); }

}  // namespace tilewise::io
