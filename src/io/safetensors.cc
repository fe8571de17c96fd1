#include "io/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

#include "io/file_error.h"
#include "io/mapped_file.h"
#include "io/safetensors_header.h"

namespace tilewise::io {
namespace {

constexpr std::size_t kLengthBytes = 8;  // the header's length, little-endian

std::string_view header_text(const Source& source) {
  const std::span<const std::byte> bytes = source.bytes;
  if (bytes.size() < kLengthBytes) {
    throw FileError(source.name, "is not a .safetensors file: it has " +
                                     std::to_string(bytes.size()) + " bytes, at least 8 expected");
  }
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    size |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  }
  const std::size_t left = bytes.size() - kLengthBytes;
  if (size > left) {
    throw FileError(source.name, "safetensors header length is " + std::to_string(size) +
                                     ", the file has " + std::to_string(left) + " bytes left");
  }
  if (size > kMaxSafetensorsHeader) {
    throw FileError(source.name, "safetensors header length is " + std::to_string(size) +
                                     ", at most " + std::to_string(kMaxSafetensorsHeader) +
                                     " is read");
  }
  return {reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
          static_cast<std::size_t>(size)};
}

// Checks that the tensors, sorted by their offsets, follow one another from 0 to the end of the
// data.
void check_offsets(const SafetensorsHeader& header, std::size_t data_size,
                   const std::string& file_name) {
  std::vector<const TensorEntry*> order;
  order.reserve(header.tensors.size());
  for (const TensorEntry& entry : header.tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end < b->end;
  });
  std::int64_t offset = 0;
  for (const TensorEntry* entry : order) {
    if (entry->begin != offset) {
      throw FileError(file_name, "tensor '" + printable(entry->name) + "': data_offsets begin at " +
                                     std::to_string(entry->begin) + ", expected " +
                                     std::to_string(offset) +
                                     (entry->begin < offset ? " (overlap)" : " (gap)"));
    }
    offset = entry->end;
  }
  if (static_cast<std::uint64_t>(offset) != data_size) {
    throw FileError(file_name, "the tensors end at byte " + std::to_string(offset) +
                                   " of the data, the file has " + std::to_string(data_size));
  }
}

}  // namespace

TensorFile parse_safetensors(const Source& source) {
  const std::string_view text = header_text(source);
  const std::span<const std::byte> data = source.bytes.subspan(kLengthBytes + text.size());
  try {
    SafetensorsHeader header = parse_safetensors_header(text, source.name);
    check_offsets(header, data.size(), source.name);
    TensorFile file;
    file.metadata = std::move(header.metadata);
    file.tensors.reserve(header.tensors.size());
    for (TensorEntry& entry : header.tensors) {
      const auto begin = static_cast<std::size_t>(entry.begin);
      const auto size = static_cast<std::size_t>(entry.end - entry.begin);
      file.tensors.push_back(
          {std::move(entry.name),
           view_array(entry.type, entry.shape, data.subspan(begin, size), source.owner)});
    }
    return file;
  } catch (const std::bad_alloc&) {
    throw FileError(source.name,
                    "no memory for tensors of " + std::to_string(data.size()) + " bytes");
  }
}

std::uint64_t safetensors_size(const Source& beginning) {
  const std::string_view text = header_text(beginning);
  std::int64_t end = 0;
  for (const TensorEntry& entry : parse_safetensors_header(text, beginning.name).tensors)
    end = std::max(end, entry.end);
  return kLengthBytes + text.size() + static_cast<std::uint64_t>(end);
}

namespace {

// Returns the tensors in the order of the file.
std::vector<const NamedTensor*> file_order(const TensorFile& file) {
  std::vector<const NamedTensor*> order;
  order.reserve(file.tensors.size());
  for (const NamedTensor& tensor : file.tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const int rank_a = safetensors_type_rank(a->array.type);
    const int rank_b = safetensors_type_rank(b->array.type);
    return rank_a != rank_b ? rank_a > rank_b : a->name < b->name;
  });
  return order;
}

// Returns the header's length and text.
std::string preamble(const std::vector<const NamedTensor*>& order, const TensorFile& file,
                     const std::string& path) {
  SafetensorsHeader header;
  header.metadata = file.metadata;
  std::int64_t offset = 0;
  for (const NamedTensor* tensor : order) {
    check_complete(tensor->array, path);
    const auto end = offset + static_cast<std::int64_t>(tensor->array.bytes.size());
    header.tensors.push_back({tensor->name, tensor->array.type, tensor->array.shape, offset, end});
    offset = end;
  }
  const std::string text = format_safetensors_header(header, path);
  if (text.size() > kMaxSafetensorsHeader) {
    throw FileError(path, "safetensors header would have " + std::to_string(text.size()) +
                              " bytes, at most " + std::to_string(kMaxSafetensorsHeader) +
                              " are read back");
  }
  std::string bytes;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    bytes += static_cast<char>((text.size() >> (8 * i)) & 0xff);
  }
  return bytes + text;
}

}  // namespace

TensorFile read_safetensors(const std::string& path) { return parse_safetensors(map_file(path)); }

TensorFile parse_safetensors(std::span<const std::byte> bytes) {
  return parse_safetensors({bytes, nullptr, "safetensors data"});
}

OutputFile stage_safetensors(const std::string& path, const TensorFile& file) {
  OutputFile output(path);
  write_safetensors(output, path, file);
  return output;
}

void write_safetensors(OutputFile& output, const std::string& path, const TensorFile& file) {
  const std::vector<const NamedTensor*> order = file_order(file);
  output.write(preamble(order, file, path));
  for (const NamedTensor* tensor : order) output.write(tensor->array.bytes);
}

void write_safetensors(const std::string& path, const TensorFile& file) {
  stage_safetensors(path, file).commit();
}

std::string format_safetensors(const TensorFile& file) {
  const std::vector<const NamedTensor*> order = file_order(file);
  std::string bytes = preamble(order, file, "safetensors data");
  for (const NamedTensor* tensor : order) {
    bytes.append(reinterpret_cast<const char*>(tensor->array.bytes.data()),
                 tensor->array.bytes.size());
  }
  return bytes;
}

}  // namespace tilewise::io
