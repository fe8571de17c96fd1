#include "io/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "io/file_error.h"

namespace tilewise::io {
namespace {

using Json = nlohmann::json;

// Duplicates are found by sorting: a file could be made to fill one bucket of a hash table.
void refuse_duplicates(std::vector<std::string_view> keys, std::string_view kind,
                       const std::string& file_name) {
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice == keys.end()) return;
  throw FileError(file_name, std::string(kind) + " '" + printable(*twice) + "' occurs twice");
}

constexpr std::size_t kHeaderAlignment = 8;

struct TypeName {
  std::string_view name;
  ElementType type;
};

// The rows are in the order of the package's enumeration, which decides the order of the tensors in
// a file.
constexpr TypeName kTypeNames[] = {
    {"BOOL", ElementType::boolean}, {"U8", ElementType::u8},        {"I8", ElementType::i8},
    {"F8_E5M2", ElementType::e5m2}, {"F8_E4M3", ElementType::e4m3}, {"I16", ElementType::i16},
    {"U16", ElementType::u16},      {"F16", ElementType::f16},      {"BF16", ElementType::bf16},
    {"I32", ElementType::i32},      {"U32", ElementType::u32},      {"F32", ElementType::f32},
    {"F64", ElementType::f64},      {"I64", ElementType::i64},      {"U64", ElementType::u64}};
static_assert(std::size(kTypeNames) == std::size(kElementTypes), "Every element type has a name.");

std::string_view type_name(ElementType type) {
  return kTypeNames[safetensors_type_rank(type)].name;
}

// Returns text as a JSON string. Characters beyond ASCII stay as they are.
std::string quoted(const std::string& text, const std::string& file_name) {
  try {
    return Json(text).dump();
  } catch (const Json::type_error&) {
    throw FileError(file_name, "text '" + printable(text) + "' is not UTF-8");
  }
}

std::string format_metadata(const SafetensorsHeader& header, const std::string& file_name) {
  std::string json = "{";
  for (const auto& [key, value] : header.metadata) {
    if (json.size() > 1) json += ',';
    json += quoted(key, file_name) + ':' + quoted(value, file_name);
  }
  return json + '}';
}

std::string format_entry(const TensorEntry& entry) {
  std::string json = "{\"dtype\":\"" + std::string(type_name(entry.type)) + "\",\"shape\":[";
  for (std::size_t axis = 0; axis < entry.shape.size(); ++axis) {
    if (axis > 0) json += ',';
    json += std::to_string(entry.shape[axis]);
  }
  return json + "],\"data_offsets\":[" + std::to_string(entry.begin) + ',' +
         std::to_string(entry.end) + "]}";
}

}  // namespace

void check_names(const SafetensorsHeader& header, const std::string& file_name) {
  std::vector<std::string_view> keys;
  keys.reserve(header.tensors.size());
  for (const TensorEntry& entry : header.tensors) keys.emplace_back(entry.name);
  refuse_duplicates(std::move(keys), "tensor", file_name);
  keys.clear();
  keys.reserve(header.metadata.size());
  for (const auto& [key, value] : header.metadata) keys.emplace_back(key);
  refuse_duplicates(std::move(keys), "metadata", file_name);
}

std::optional<ElementType> safetensors_type(std::string_view name) {
  for (const TypeName& row : kTypeNames) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

std::string format_safetensors_header(const SafetensorsHeader& header,
                                      const std::string& file_name) {
  check_names(header, file_name);
  if (header.metadata.size() > kMaxMetadata) {
    throw FileError(file_name, "metadata has " + std::to_string(header.metadata.size()) +
                                   " entries, at most " + std::to_string(kMaxMetadata));
  }
  std::string json = "{";
  if (!header.metadata.empty()) {
    json += quoted(std::string(kMetadataKey), file_name) + ':' + format_metadata(header, file_name);
  }
  for (const TensorEntry& entry : header.tensors) {
    if (entry.name == kMetadataKey) {
      throw FileError(file_name, "tensor name '__metadata__' is reserved");
    }
    if (json.size() > 1) json += ',';
    json += quoted(entry.name, file_name) + ':' + format_entry(entry);
  }
  json += '}';
  json.append((kHeaderAlignment - json.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  return json;
}

int safetensors_type_rank(ElementType type) {
  const TypeName* row = std::find_if(std::begin(kTypeNames), std::end(kTypeNames),
                                     [type](const TypeName& name) { return name.type == type; });
  return static_cast<int>(row - std::begin(kTypeNames));
}

}  // namespace tilewise::io
