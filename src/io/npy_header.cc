#include "io/npy_header.h"

#include <optional>

#include "io/file_error.h"

namespace tilewise::io {
namespace {

struct DescriptorRow {
  ElementType type;
  std::string_view descriptor;  // the type as NumPy writes it
};

// NumPy has no bfloat16 and no fp8. Arrays of ml_dtypes' bfloat16 and float8_e4m3fn are saved as
// two bytes and one byte without a type, and read back with .view(bfloat16); float8_e5m2 has a
// type.
constexpr DescriptorRow kDescriptors[] = {
    {ElementType::f64, "<f8"},     {ElementType::f32, "<f4"},  {ElementType::f16, "<f2"},
    {ElementType::bf16, "<V2"},    {ElementType::i64, "<i8"},  {ElementType::i32, "<i4"},
    {ElementType::i16, "<i2"},     {ElementType::i8, "|i1"},   {ElementType::u64, "<u8"},
    {ElementType::u32, "<u4"},     {ElementType::u16, "<u2"},  {ElementType::u8, "|u1"},
    {ElementType::boolean, "|b1"}, {ElementType::e4m3, "<V1"}, {ElementType::e5m2, "<f1"}};
static_assert(std::size(kDescriptors) == std::size(kElementTypes),
              "Every element type has a descriptor.");

constexpr std::string_view kExpectedTypes =
    "expected <f2 <f4 <f8 <V2 (bf16) <V1 (e4m3) <f1 (e5m2) |b1 |i1 <i2 <i4 <i8 |u1 <u2 <u4 or <u8";

constexpr std::size_t kGrowthDigits = 21;  // NumPy's GROWTH_AXIS_MAX_DIGITS

class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  NpyHeader parse() {
    expect('{');
    while (!accept('}')) {
      parse_entry();
      if (accept(',')) continue;
      expect('}');
      break;
    }
    skip_space();
    if (position_ != text_.size()) fail("unexpected text after the dictionary");
    return finished();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FileError(
        name_, "npy header: " + what + " at byte " + std::to_string(position_) + " of the header");
  }

  void skip_space() {
    while (position_ < text_.size() &&
           std::string_view(" \t\r\n").find(text_[position_]) != std::string_view::npos) {
      ++position_;
    }
  }

  bool accept(char wanted) {
    skip_space();
    if (position_ == text_.size() || text_[position_] != wanted) return false;
    ++position_;
    return true;
  }

  void expect(char wanted) {
    if (!accept(wanted)) fail(std::string("expected '") + wanted + "'");
  }

  // Parses a string without escapes: no legal key or type has any.
  std::string_view parse_string() {
    const char quote = accept('\'') ? '\'' : '"';
    if (quote == '"') {
      if (!accept('"')) fail("expected a string");
    }
    const std::size_t end = text_.find(quote, position_);
    if (end == std::string_view::npos) fail("a string does not end");
    const std::string_view content = text_.substr(position_, end - position_);
    if (content.find('\\') != std::string_view::npos) fail("a string with a backslash");
    position_ = end + 1;
    return content;
  }

  void parse_entry() {
    skip_space();
    const std::string_view key = parse_string();
    expect(':');
    if (key == "descr") {
      once(type_.has_value(), key);
      type_ = parse_type();
    } else if (key == "fortran_order") {
      once(fortran_order_.has_value(), key);
      fortran_order_ = parse_boolean();
    } else if (key == "shape") {
      once(shape_.has_value(), key);
      shape_ = parse_shape();
    } else {
      fail("unknown key '" + printable(key) + "', expected descr, fortran_order or shape");
    }
  }

  void once(bool seen, std::string_view key) const {
    if (seen) fail("key '" + std::string(key) + "' occurs twice");
  }

  ElementType parse_type() {
    if (accept('[')) fail("descr is a structured type, expected a single element type");
    const std::string_view descriptor = parse_string();
    for (const DescriptorRow& row : kDescriptors) {
      if (descriptor == row.descriptor) return row.type;
      // The byte order of one-byte types, and of bytes without a type, may be spelt either way.
      const bool either_order = element_size(row.type) == 1 || row.type == ElementType::bf16;
      if (either_order && descriptor.size() == 3 &&
          descriptor.substr(1) == row.descriptor.substr(1) &&
          (descriptor[0] == '<' || descriptor[0] == '|')) {
        return row.type;
      }
    }
    const std::string quoted = "descr is '" + printable(descriptor) + "'";
    if (descriptor.starts_with('>')) {
      fail(quoted + ": big-endian, expected little-endian; convert with numpy's astype");
    }
    if (descriptor.ends_with('O')) fail(quoted + ": Python objects are not read");
    fail(quoted + ", " + std::string(kExpectedTypes));
  }

  bool parse_boolean() {
    skip_space();
    for (const bool value : {false, true}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(position_).starts_with(word)) {
        position_ += word.size();
        return value;
      }
    }
    fail("fortran_order is neither True nor False");
  }

  // Parses () or (2,) or (2, 3) or (2, 3,): in Python (2) is a number.
  std::vector<std::int64_t> parse_shape() {
    std::vector<std::int64_t> shape;
    expect('(');
    while (!accept(')')) {
      if (shape.size() == kMaxRank) {
        fail("shape has more than " + std::to_string(kMaxRank) + " dimensions");
      }
      shape.push_back(parse_size());
      if (accept(',')) continue;
      expect(')');
      if (shape.size() == 1) fail("shape (" + std::to_string(shape[0]) + ") is not a tuple");
      break;
    }
    return shape;
  }

  std::int64_t parse_size() {
    skip_space();
    const std::size_t begin = position_;
    std::int64_t value = 0;
    while (position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9') {
      const int digit = text_[position_] - '0';
      if (__builtin_mul_overflow(value, 10, &value) ||
          __builtin_add_overflow(value, digit, &value)) {
        fail("a size of shape exceeds 2^63 - 1");
      }
      ++position_;
    }
    if (position_ == begin) fail("a size of shape is not a number >= 0");
    if (text_[begin] == '0' && position_ - begin > 1) fail("a size of shape has a leading zero");
    return value;
  }

  NpyHeader finished() const {
    if (!type_) fail("key 'descr' is missing");
    if (!fortran_order_) fail("key 'fortran_order' is missing");
    if (!shape_) fail("key 'shape' is missing");
    return {*type_, *fortran_order_, *shape_};
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t position_ = 0;
  std::optional<ElementType> type_;
  std::optional<bool> fortran_order_;
  std::optional<std::vector<std::int64_t>> shape_;
};

std::string_view descriptor_of(ElementType type) {
  return kDescriptors[static_cast<std::size_t>(type)].descriptor;
}

}  // namespace

NpyHeader parse_npy_header(std::string_view text, const std::string& name) {
  return HeaderParser(text, name).parse();
}

std::string format_npy_header(const NpyHeader& header) {
  std::string text = "{'descr': '" + std::string(descriptor_of(header.type)) +
                     "', 'fortran_order': " + (header.fortran_order ? "True" : "False") +
                     ", 'shape': " + shape_text(header.shape) + ", }";
  if (!header.shape.empty()) {
    const std::int64_t growing = header.fortran_order ? header.shape.back() : header.shape.front();
    text.append(kGrowthDigits - std::to_string(growing).size(), ' ');
  }
  return text;
}

}  // namespace tilewise::io
