// An array as a file holds it: element type, shape, bytes in C order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tilewise::io {

// e4m3 is the "fn" variant, float8_e4m3fn of torch and of ml_dtypes.
enum class ElementType {
  f64,
  f32,
  f16,
  bf16,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  e4m3,
  e5m2
};

inline constexpr ElementType kElementTypes[] = {
    ElementType::f64, ElementType::f32, ElementType::f16,     ElementType::bf16, ElementType::i64,
    ElementType::i32, ElementType::i16, ElementType::i8,      ElementType::u64,  ElementType::u32,
    ElementType::u16, ElementType::u8,  ElementType::boolean, ElementType::e4m3, ElementType::e5m2};

// The limit of NumPy itself since 2.0. A file with more dimensions is refused.
inline constexpr std::size_t kMaxRank = 64;

// Owned bytes start at a multiple of this.
inline constexpr std::size_t kArrayAlignment = 64;

// Returns the bytes of one element.
std::int64_t element_size(ElementType type);

// Returns "fp32", "bf16", "int64", "bool", ...: for messages.
std::string_view element_name(ElementType type);

// Returns "(2, 3)", "(4,)" or "()", as Python writes it.
std::string shape_text(std::span<const std::int64_t> shape);

// Return the number of elements, and of bytes, of an array of this shape; nothing if a size is
// negative, if there are more than kMaxRank sizes, or if the bytes exceed int64. Sizes of 0 do not
// hide an overflow: the other sizes must fit by themselves, whatever their order, so that strides
// can be computed.
std::optional<std::int64_t> element_count(std::span<const std::int64_t> shape);
std::optional<std::int64_t> byte_size(ElementType type, std::span<const std::int64_t> shape);

// Copies share the bytes. Rank 0 means one element; a size of 0 means no bytes.
struct Array {
  ElementType type = ElementType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;   // C order, little-endian, aligned for the element type
  std::span<std::byte> writable;      // the same bytes if owned; empty for a view of a file
  std::shared_ptr<const void> owner;  // keeps the bytes alive; null if the caller does

  // Returns the elements as T, whose size must be that of the element type. bf16 and f16 are read
  // as std::uint16_t; e4m3, e5m2 and booleans as std::uint8_t, since a file may hold bytes other
  // than 0 and 1. Throws std::invalid_argument for another size.
  template <class T>
  std::span<const T> elements() const {
    check_element_size(sizeof(T));
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  template <class T>
  std::span<T> writable_elements() {
    check_element_size(sizeof(T));
    return {reinterpret_cast<T*>(writable.data()), writable.size() / sizeof(T)};
  }

 private:
  void check_element_size(std::size_t size) const;
};

// Returns a new array that owns its bytes, which are zero. Throws std::invalid_argument if
// byte_size returns nothing, and std::bad_alloc.
Array make_array(ElementType type, std::span<const std::int64_t> shape);

// Returns an owned array with a copy of these bytes, which must be byte_size(type, shape) many.
Array copy_array(ElementType type, std::span<const std::int64_t> shape,
                 std::span<const std::byte> bytes);

// Throws FileError, naming the file to be written, unless the array has as many bytes as type and
// shape need.
void check_complete(const Array& array, const std::string& path);

// Returns a view of the bytes, kept alive by `owner`, or a copy if they are not aligned for the
// element type.
Array view_array(ElementType type, std::span<const std::int64_t> shape,
                 std::span<const std::byte> bytes, std::shared_ptr<const void> owner);

}  // namespace tilewise::io
