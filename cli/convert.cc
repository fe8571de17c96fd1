#include "convert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "flags.h"
#include "problem/tensor_checks.h"
#include "verify/tensor.h"

namespace tilewise::cli {
namespace {

std::int32_t dtype_of(io::ElementType type) {
  switch (type) {
    case io::ElementType::f64:
      return TILEWISE_FP64;
    case io::ElementType::f32:
      return TILEWISE_FP32;
    case io::ElementType::bf16:
      return TILEWISE_BF16;
    case io::ElementType::f16:
      return TILEWISE_FP16;
    case io::ElementType::i32:
      return TILEWISE_INT32;
    case io::ElementType::i64:
      return TILEWISE_INT64;
    case io::ElementType::boolean:
      return TILEWISE_BOOL;
    case io::ElementType::e4m3:
      return TILEWISE_E4M3;
    case io::ElementType::e5m2:
      return TILEWISE_E5M2;
    default:
      return 0;
  }
}

// "mask[2, 3]", for the element with a row-major index.
std::string element_text(const std::string& name, const io::Array& array, std::int64_t index) {
  std::vector<std::int64_t> position(array.shape.size());
  for (std::size_t d = position.size(); d-- > 0; index /= array.shape[d])
    position[d] = index % array.shape[d];
  return fmt::format("{}[{}]", name, fmt::join(position, ", "));
}

}  // namespace

tilewise_tensor tensor_of(const std::string& name, const io::Array& array) {
  const std::int32_t dtype = dtype_of(array.type);
  if (dtype == 0) {
    throw UsageError(fmt::format(
        "{}: element type is {}, must be fp64, fp32, bf16, fp16, e4m3, e5m2, int32, int64 or bool",
        name, io::element_name(array.type)));
  }
  if (array.shape.empty() || array.shape.size() > TILEWISE_MAX_RANK) {
    throw UsageError(fmt::format("{}: shape is {}, must have 1 to {} dimensions", name,
                                 io::shape_text(array.shape), int{TILEWISE_MAX_RANK}));
  }
  void* const data = const_cast<std::byte*>(array.bytes.data());
  return tilewise_contiguous(data, dtype, static_cast<std::int32_t>(array.shape.size()),
                             array.shape.data());
}

io::Array as_boolean(const std::string& name, const io::Array& array) {
  const auto numbers = array.elements<std::uint8_t>();
  const auto bad = std::find_if(numbers.begin(), numbers.end(), [](auto x) { return x > 1; });
  if (bad != numbers.end()) {
    throw UsageError(fmt::format("{}: is {}, must be 0 or 1",
                                 element_text(name, array, bad - numbers.begin()), *bad));
  }
  io::Array boolean = array;
  boolean.type = io::ElementType::boolean;
  return boolean;
}

io::Array as_int32(const std::string& name, const io::Array& array) {
  const auto numbers = array.elements<std::int64_t>();
  io::Array narrow = io::make_array(io::ElementType::i32, array.shape);
  auto* const to = reinterpret_cast<std::int32_t*>(narrow.writable.data());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] < INT32_MIN || numbers[i] > INT32_MAX) {
      throw UsageError(fmt::format("{}: is {}, must fit int32",
                                   element_text(name, array, static_cast<std::int64_t>(i)),
                                   numbers[i]));
    }
    to[i] = static_cast<std::int32_t>(numbers[i]);
  }
  return narrow;
}

std::int32_t floating_dtype(const std::string& name, const io::Array& array) {
  const std::int32_t dtype = dtype_of(array.type);
  if (!problem::is_floating(dtype)) {
    throw UsageError(
        fmt::format("{}: element type is {}, must be fp64, fp32, bf16, fp16, e4m3 or e5m2", name,
                    io::element_name(array.type)));
  }
  return dtype;
}

io::ElementType element_type(std::int32_t dtype) {
  for (const io::ElementType type : io::kElementTypes) {
    if (dtype_of(type) == dtype) return type;
  }
  throw UsageError(fmt::format("dtype {} has no element type", dtype));
}

io::Array cast(const io::Array& array, std::int32_t dtype) {
  if (dtype_of(array.type) == dtype) return array;
  io::Array result = io::make_array(element_type(dtype), array.shape);
  tilewise_tensor from = {};
  from.data = const_cast<std::byte*>(array.bytes.data());
  from.dtype = dtype_of(array.type);
  tilewise_tensor to = {};
  to.data = result.writable.data();
  to.dtype = dtype;
  const std::int64_t count = io::element_count(array.shape).value();
  for (std::int64_t i = 0; i < count; ++i) {
    verify::write_element(to, i, verify::read_element(from, i));
  }
  return result;
}

}  // namespace tilewise::cli
