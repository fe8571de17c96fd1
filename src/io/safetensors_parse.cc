#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "io/file_error.h"
#include "io/safetensors_header.h"

namespace tilewise::io {
namespace {

using Json = nlohmann::json;

// Receives the JSON piece by piece, so that nothing is built of a header that is refused, and the
// parser never descends deeper than the lists of an entry.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(const std::string& file_name) : file_name_(file_name) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool start_object(std::size_t) override {
    if (level_ == Level::kOutside) return enter(Level::kRoot);
    if (level_ != Level::kRoot) fail("object", "");
    if (name_ == kMetadataKey) {
      if (std::exchange(has_metadata_, true)) fail_entry("occurs twice");
      return enter(Level::kMetadata);
    }
    entry_ = Entry{};
    return enter(Level::kTensor);
  }

  bool end_object() override {
    if (level_ == Level::kTensor) finish_tensor();
    return enter(level_ == Level::kRoot ? Level::kOutside : Level::kRoot);
  }

  bool key(string_t& text) override {
    if (level_ == Level::kTensor) return start_field(text);
    (level_ == Level::kRoot ? name_ : metadata_key_) = std::move(text);
    return true;
  }

  bool string(string_t& text) override {
    if (level_ == Level::kMetadata) {
      if (header_.metadata.size() == kMaxMetadata) {
        fail_entry("more than " + std::to_string(kMaxMetadata) + " entries");
      }
      header_.metadata.emplace_back(std::move(metadata_key_), std::move(text));
      return true;
    }
    if (level_ != Level::kTensor || field_ != kType) fail("string", text);
    entry_.type = safetensors_type(text);
    if (!entry_.type) {
      fail_entry(
          "dtype is '" + printable(text) +
          "', expected F64 F32 F16 BF16 F8_E4M3 F8_E5M2 I64 I32 I16 I8 U64 U32 U16 U8 or BOOL");
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (level_ != Level::kTensor || field_ == kType) fail("list", "");
    return enter(Level::kList);
  }

  bool end_array() override { return enter(Level::kTensor); }

  bool number_unsigned(number_unsigned_t number) override {
    if (level_ != Level::kList) fail("number", std::to_string(number));
    if (number > static_cast<number_unsigned_t>(INT64_MAX)) {
      fail_entry(field_name() + " has " + std::to_string(number) + ", at most 2^63 - 1");
    }
    std::vector<std::int64_t>& list = field_ == kShape ? entry_.shape : entry_.offsets;
    const std::size_t limit = field_ == kShape ? kMaxRank : 2;
    if (list.size() == limit) {
      fail_entry(field_name() + " has more than " + std::to_string(limit) + " numbers");
    }
    list.push_back(static_cast<std::int64_t>(number));
    return true;
  }

  bool number_integer(number_integer_t number) override {
    fail("negative number", std::to_string(number));
  }
  bool number_float(number_float_t, const string_t& text) override {
    fail("fraction, or number beyond 64 bits,", text);
  }
  bool null() override { fail("null", ""); }
  bool boolean(bool) override { fail("boolean", ""); }
  bool binary(binary_t&) override { fail("binary data", ""); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    throw FileError(file_name_, "safetensors header is not valid JSON at byte " +
                                    std::to_string(position) + " of the header");
  }

 private:
  enum class Level { kOutside, kRoot, kMetadata, kTensor, kList };
  enum Field : std::size_t { kType, kShape, kOffsets };
  static constexpr std::string_view kFieldNames[] = {"dtype", "shape", "data_offsets"};

  struct Entry {
    std::optional<ElementType> type;
    std::vector<std::int64_t> shape, offsets;
    bool seen[std::size(kFieldNames)] = {};
  };

  bool enter(Level level) {
    level_ = level;
    return true;
  }

  std::string field_name() const { return std::string(kFieldNames[field_]); }

  // Fails because the entry of the root object that is being read is wrong.
  [[noreturn]] void fail_entry(const std::string& what) const {
    const std::string kind = name_ == kMetadataKey ? "" : "tensor ";
    throw FileError(file_name_, kind + "'" + printable(name_) + "': " + what);
  }

  // Fails because a value of this kind is not allowed here.
  [[noreturn]] void fail(std::string_view kind, const std::string& value) const {
    std::string what = "unexpected " + std::string(kind);
    if (!value.empty()) what += " '" + printable(value) + "'";
    if (level_ == Level::kMetadata) {
      what += " under '" + printable(metadata_key_) + "', expected a string";
    } else if (level_ == Level::kRoot) {
      what += ", expected an object";
    } else {
      what += " in " + field_name();
    }
    fail_entry(what);
  }

  bool start_field(std::string_view text) {
    for (const Field field : {kType, kShape, kOffsets}) {
      if (text != kFieldNames[field]) continue;
      field_ = field;
      if (entry_.seen[field]) fail_entry("field " + field_name() + " occurs twice");
      return entry_.seen[field] = true;
    }
    fail_entry("unknown field '" + printable(text) + "', expected dtype, shape or data_offsets");
  }

  void finish_tensor() {
    for (const Field field : {kType, kShape, kOffsets}) {
      if (!entry_.seen[field]) {
        fail_entry("field " + std::string(kFieldNames[field]) + " is missing");
      }
    }
    const std::vector<std::int64_t>& offsets = entry_.offsets;
    if (offsets.size() != 2) fail_entry("data_offsets has fewer than 2 numbers");
    if (offsets[1] < offsets[0]) fail_entry(offsets_text() + " ends before it begins");
    const std::optional<std::int64_t> size = byte_size(*entry_.type, entry_.shape);
    if (size != offsets[1] - offsets[0]) {
      fail_entry(offsets_text() + " spans " + std::to_string(offsets[1] - offsets[0]) +
                 " bytes, shape " + shape_text(entry_.shape) + " of " +
                 std::string(element_name(*entry_.type)) + " needs " +
                 (size ? std::to_string(*size) : std::string("more than 2^63 - 1")));
    }
    header_.tensors.push_back(
        {std::move(name_), *entry_.type, std::move(entry_.shape), offsets[0], offsets[1]});
  }

  std::string offsets_text() const {
    return "data_offsets [" + std::to_string(entry_.offsets[0]) + ", " +
           std::to_string(entry_.offsets[1]) + "]";
  }

  const std::string& file_name_;
  SafetensorsHeader header_;
  Level level_ = Level::kOutside;
  Field field_ = kType;
  std::string name_;
  std::string metadata_key_;
  bool has_metadata_ = false;
  Entry entry_;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, const std::string& file_name) {
  if (text.empty() || text.front() != '{') {
    throw FileError(file_name, "safetensors header does not begin with {");
  }
  // The JSON library treats a zero byte as the end of the text and would ignore what follows.
  const std::size_t zero = text.find('\0');
  if (zero != std::string_view::npos) {
    throw FileError(file_name, "safetensors header has a zero byte at byte " +
                                   std::to_string(zero) + " of the header");
  }
  HeaderReader reader(file_name);
  Json::sax_parse(text.begin(), text.end(), &reader);
  SafetensorsHeader header = reader.take();
  check_names(header, file_name);
  return header;
}

}  // namespace tilewise::io
