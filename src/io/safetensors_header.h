// The header of a .safetensors file: a JSON object. Used by safetensors.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/array.h"

namespace tilewise::io {

// Entries of metadata, which are the cheapest way to fill a header with work. Files of today have a
// few.
inline constexpr std::size_t kMaxMetadata = 4096;

struct TensorEntry {
  std::string name;
  ElementType type = ElementType::f32;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // of its bytes, from the start of the data
  std::int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;
};

// The key under which the JSON holds the metadata; no tensor may have this name.
inline constexpr std::string_view kMetadataKey = "__metadata__";

// Parses the JSON and checks its form: fields, types, duplicates, that end - begin is the size of
// type and shape. Whether the tensors fill the data is the caller's question. `file_name` is for
// the message. Throws FileError.
SafetensorsHeader parse_safetensors_header(std::string_view text, const std::string& file_name);

// The JSON, padded with spaces such that data behind it and the 8 bytes before it is aligned to 8.
// Throws FileError for names and metadata that are not UTF-8, that occur twice, or for a tensor
// named __metadata__.
std::string format_safetensors_header(const SafetensorsHeader& header,
                                      const std::string& file_name);

// Refuses two tensors, or two entries of metadata, of one name. Throws FileError.
void check_names(const SafetensorsHeader& header, const std::string& file_name);

// The type that the format calls "F32" and so on.
std::optional<ElementType> safetensors_type(std::string_view name);

// The place of a type in the package's order of types: its files hold the larger ones first.
int safetensors_type_rank(ElementType type);

}  // namespace tilewise::io
