// Access to tensors of any dtype and strides, element by element, as doubles.
#pragma once

#include <tilewise/tilewise.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace tilewise::verify {

// Returns the element at `offset` (in elements) of any floating dtype, widened exactly.
double read_element(const tilewise_tensor& tensor, std::int64_t offset);

// Stores x rounded to nearest even.
void write_element(const tilewise_tensor& tensor, std::int64_t offset, double x);

// Returns x rounded to the dtype and widened again.
double rounded(std::int32_t dtype, double x);

std::int64_t element_count(const tilewise_tensor& tensor);  // 0 if the tensor is absent

// Calls fn(index, offset) for every element in row-major order: its row-major index and its offset.
template <class Function>
void for_each_element(const tilewise_tensor& tensor, Function fn) {
  const std::int64_t count = element_count(tensor);
  std::int64_t index[TILEWISE_MAX_RANK] = {0, 0, 0, 0};
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t offset = 0;
    for (int d = 0; d < tensor.rank; ++d) offset += index[d] * tensor.strides[d];
    fn(i, offset);
    for (int d = tensor.rank - 1; d >= 0 && ++index[d] == tensor.shape[d]; --d) index[d] = 0;
  }
}

// Returns the elements in row-major order.
std::vector<double> numbers_of(const tilewise_tensor& tensor);

// Returns the largest |x| of the numbers that are finite; 0 if there are none.
double largest_finite(const std::vector<double>& numbers);

// Fills every element with 0xFF bytes, which is NaN in every floating dtype. Bytes between elements
// do not change.
void poison(const tilewise_tensor& tensor);

// Aligned memory filled with 0xFF, which is NaN in every floating dtype.
class Memory {
 public:
  explicit Memory(std::size_t bytes);
  std::byte* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_;
};

// Contiguous tensors that live as long as their owner.
class TensorOwner {
 public:
  // Returns a tensor of the given dtype and shape, filled with NaN.
  tilewise_tensor make(std::int32_t dtype, int rank, const std::int64_t* shape);

  // Returns a copy of `tensor`, converted to the dtype.
  tilewise_tensor copy(std::int32_t dtype, const tilewise_tensor& tensor);

 private:
  std::vector<Memory> memory_;
};

}  // namespace tilewise::verify
