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

// The largest number of metadata entries, which are the cheapest way to make a header expensive to
// parse. Files of today have a few.
inline constexpr std::size_t kMaxMetadata = 4096;

struct TensorEntry {
  std::string name;
  ElementType type = ElementType::f32;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // of the tensor's bytes, from the start of the data
  std::int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;
};

// The key under which the JSON holds the metadata; no tensor may have this name.
inline constexpr std::string_view kMetadataKey = "__metadata__";

// Parses the JSON and checks its form: fields, types, duplicates, and that end - begin is the size
// of type and shape. The caller checks whether the tensors fill the data. `file_name` is for the
// message. Throws FileError.
SafetensorsHeader parse_safetensors_header(std::string_view text, const std::string& file_name);

// Returns the JSON, padded with spaces so that the data, which follows it and the 8 bytes of its
// length, is aligned to 8. Throws FileError for names and metadata that are not UTF-8 or occur
// twice, and for a tensor named __metadata__.
std::string format_safetensors_header(const SafetensorsHeader& header,
                                      const std::string& file_name);

// Refuses two tensors, or two entries of metadata, of one name. Throws FileError.
void check_names(const SafetensorsHeader& header, const std::string& file_name);

// Returns the type that the format calls "F32" and so on.
std::optional<ElementType> safetensors_type(std::string_view name);

// Returns the position of a type in the package's order of types: its files hold the larger ones
// first.
int safetensors_type_rank(ElementType type);

}  // namespace tilewise::io
