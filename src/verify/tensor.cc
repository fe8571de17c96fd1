#include "verify/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "math/float8.h"
#include "problem/problem.h"

namespace tilewise::verify {

double read_element(const tilewise_tensor& tensor, std::int64_t offset) {
  switch (tensor.dtype) {
    case TILEWISE_FP64:
      return static_cast<const double*>(tensor.data)[offset];
    case TILEWISE_FP32:
      return static_cast<double>(static_cast<const float*>(tensor.data)[offset]);
    case TILEWISE_BF16:
      return math::load<double>(static_cast<const math::BFloat16*>(tensor.data)[offset]);
    case TILEWISE_E4M3:
      return math::load<double>(static_cast<const math::Float8E4M3*>(tensor.data)[offset]);
    case TILEWISE_E5M2:
      return math::load<double>(static_cast<const math::Float8E5M2*>(tensor.data)[offset]);
    default:
      return math::load<double>(static_cast<const math::Float16*>(tensor.data)[offset]);
  }
}

void write_element(const tilewise_tensor& tensor, std::int64_t offset, double x) {
  switch (tensor.dtype) {
    case TILEWISE_FP64:
      static_cast<double*>(tensor.data)[offset] = x;
      break;
    case TILEWISE_FP32:
      static_cast<float*>(tensor.data)[offset] = static_cast<float>(x);
      break;
    case TILEWISE_BF16:
      math::store(x, static_cast<math::BFloat16*>(tensor.data) + offset);
      break;
    case TILEWISE_E4M3:
      math::store(x, static_cast<math::Float8E4M3*>(tensor.data) + offset);
      break;
    case TILEWISE_E5M2:
      math::store(x, static_cast<math::Float8E5M2*>(tensor.data) + offset);
      break;
    default:
      math::store(x, static_cast<math::Float16*>(tensor.data) + offset);
      break;
  }
}

double rounded(std::int32_t dtype, double x) {
  double storage = 0;
  tilewise_tensor tensor = {};
  tensor.data = &storage;
  tensor.dtype = dtype;
  write_element(tensor, 0, x);
  return read_element(tensor, 0);
}

std::int64_t element_count(const tilewise_tensor& tensor) {
  if (tensor.rank == 0) return 0;
  std::int64_t count = 1;
  for (int d = 0; d < tensor.rank; ++d) count *= tensor.shape[d];
  return count;
}

std::vector<double> numbers_of(const tilewise_tensor& tensor) {
  std::vector<double> numbers;
  numbers.reserve(static_cast<std::size_t>(element_count(tensor)));
  for_each_element(tensor, [&](std::int64_t, std::int64_t offset) {
    numbers.push_back(read_element(tensor, offset));
  });
  return numbers;
}

double largest_finite(const std::vector<double>& numbers) {
  double largest = 0;
  for (const double x : numbers) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  }
  return largest;
}

void poison(const tilewise_tensor& tensor) {
  const std::int64_t size = problem::dtype_size(tensor.dtype);
  for_each_element(tensor, [&](std::int64_t, std::int64_t offset) {
    std::memset(static_cast<std::byte*>(tensor.data) + offset * size, 0xFF,
                static_cast<std::size_t>(size));
  });
}

void Memory::Free::operator()(std::byte* memory) const { std::free(memory); }

Memory::Memory(std::size_t bytes) : bytes_(bytes) {
  const std::size_t alignment = 64;
  const std::size_t size = (bytes / alignment + 1) * alignment;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, size)));
  if (data_ == nullptr) throw std::bad_alloc();
  std::memset(data_.get(), 0xFF, size);
}

tilewise_tensor TensorOwner::make(std::int32_t dtype, int rank, const std::int64_t* shape) {
  tilewise_tensor tensor = tilewise_contiguous(nullptr, dtype, rank, shape);
  const std::int64_t bytes = element_count(tensor) * problem::dtype_size(dtype);
  memory_.emplace_back(static_cast<std::size_t>(bytes));
  tensor.data = memory_.back().data();
  return tensor;
}

tilewise_tensor TensorOwner::copy(std::int32_t dtype, const tilewise_tensor& tensor) {
  const tilewise_tensor result = make(dtype, tensor.rank, tensor.shape);
  for_each_element(tensor, [&](std::int64_t i, std::int64_t offset) {
    write_element(result, i, read_element(tensor, offset));
  });
  return result;
}

}  // namespace tilewise::verify
