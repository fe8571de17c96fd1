#include "io/array.h"

#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "io/file_error.h"

namespace tilewise::io {
namespace {

struct TypeRow {
  std::int64_t size;
  std::string_view name;
};

// The rows are in the order of the enumeration.
constexpr TypeRow kTypeRows[] = {{8, "fp64"},   {4, "fp32"},   {2, "fp16"},   {2, "bf16"},
                                 {8, "int64"},  {4, "int32"},  {2, "int16"},  {1, "int8"},
                                 {8, "uint64"}, {4, "uint32"}, {2, "uint16"}, {1, "uint8"},
                                 {1, "bool"},   {1, "e4m3"},   {1, "e5m2"}};
static_assert(std::size(kTypeRows) == std::size(kElementTypes),
              "Every element type has a row with its size and name.");

// Returns the product of the sizes with zeros left out, or nothing if it overflows.
std::optional<std::int64_t> stride_product(std::int64_t first,
                                           std::span<const std::int64_t> shape) {
  std::int64_t product = first;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size != 0 && __builtin_mul_overflow(product, size, &product)) return std::nullopt;
  }
  return product;
}

bool has_zero(std::span<const std::int64_t> shape) {
  for (const std::int64_t size : shape) {
    if (size == 0) return true;
  }
  return false;
}

std::optional<std::int64_t> checked_size(std::int64_t unit, std::span<const std::int64_t> shape) {
  if (shape.size() > kMaxRank) return std::nullopt;
  const std::optional<std::int64_t> product = stride_product(unit, shape);
  if (product && has_zero(shape)) return 0;
  return product;
}

struct AlignedDelete {
  void operator()(std::byte* bytes) const {
    ::operator delete (bytes, std::align_val_t{kArrayAlignment});
  }
};

Array allocate(ElementType type, std::span<const std::int64_t> shape) {
  const std::optional<std::int64_t> size = byte_size(type, shape);
  if (!size) throw std::invalid_argument("array: shape " + shape_text(shape) + " has no size");
  const auto count = static_cast<std::size_t>(*size);
  std::shared_ptr<std::byte> storage(
      static_cast<std::byte*>(::operator new (count, std::align_val_t{kArrayAlignment})),
      AlignedDelete{});
  Array array;
  array.type = type;
  array.shape.assign(shape.begin(), shape.end());
  array.writable = {storage.get(), count};
  array.bytes = array.writable;
  array.owner = std::move(storage);
  return array;
}

}  // namespace

std::int64_t element_size(ElementType type) {
  return kTypeRows[static_cast<std::size_t>(type)].size;
}

std::string_view element_name(ElementType type) {
  return kTypeRows[static_cast<std::size_t>(type)].name;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(shape[axis]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

std::optional<std::int64_t> element_count(std::span<const std::int64_t> shape) {
  return checked_size(1, shape);
}

std::optional<std::int64_t> byte_size(ElementType type, std::span<const std::int64_t> shape) {
  return checked_size(element_size(type), shape);
}

void Array::check_element_size(std::size_t size) const {
  if (size == static_cast<std::size_t>(element_size(type))) return;
  throw std::invalid_argument("array: elements of " + std::to_string(size) +
                              " bytes requested of type " + std::string(element_name(type)));
}

Array make_array(ElementType type, std::span<const std::int64_t> shape) {
  Array array = allocate(type, shape);
  if (!array.writable.empty()) std::memset(array.writable.data(), 0, array.writable.size());
  return array;
}

Array copy_array(ElementType type, std::span<const std::int64_t> shape,
                 std::span<const std::byte> bytes) {
  Array array = allocate(type, shape);
  if (bytes.size() != array.bytes.size()) {
    throw std::invalid_argument("array: " + std::to_string(bytes.size()) + " bytes for shape " +
                                shape_text(shape) + ", which needs " +
                                std::to_string(array.bytes.size()));
  }
  if (!bytes.empty()) std::memcpy(array.writable.data(), bytes.data(), bytes.size());
  return array;
}

void check_complete(const Array& array, const std::string& path) {
  const std::optional<std::int64_t> size = byte_size(array.type, array.shape);
  if (size && static_cast<std::uint64_t>(*size) == array.bytes.size()) return;
  throw FileError(path, "array of shape " + shape_text(array.shape) + " has " +
                            std::to_string(array.bytes.size()) + " bytes, expected " +
                            (size ? std::to_string(*size) : std::string("a shape with a size")));
}

Array view_array(ElementType type, std::span<const std::int64_t> shape,
                 std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  if (address % static_cast<std::uintptr_t>(element_size(type)) != 0) {
    return copy_array(type, shape, bytes);
  }
  Array array;
  array.type = type;
  array.shape.assign(shape.begin(), shape.end());
  array.bytes = bytes;
  array.owner = std::move(owner);
  return array;
}

}  // namespace tilewise::io
