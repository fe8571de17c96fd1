// The border between slow and fast memory. Rungs touch tensors only through these loads and stores,
// which convert to and from the arithmetic type T and report to the counter how many bytes crossed.
// Row statistics (lse, delta, m, l) are not counted, as in the papers: they are O(N), compared with
// O(N D).
#pragma once

#include <cstring>

#include "math/float8.h"
#include "problem/kernel.h"

namespace tilewise::reference {

// The counting policies; a run uses one of them.
struct NoTraffic {
  static void read(std::int64_t, std::int64_t) {}
  static void write(std::int64_t, std::int64_t) {}
};
struct CountTraffic {
  problem::Traffic total;
  void read(std::int64_t elements, std::int64_t element_size) {
    total.read_bytes += elements * element_size;
  }
  void write(std::int64_t elements, std::int64_t element_size) {
    total.written_bytes += elements * element_size;
  }
};

// `count` rows of one head of a tensor, from row `first` of the tensor's row axis on.
struct Rows {
  std::int64_t batch;
  std::int64_t head;
  std::int64_t first;
  std::int64_t count;
};

template <class T, class Storage>
void load_row(const Storage* from, std::int64_t width, T* to) {
  for (std::int64_t c = 0; c < width; ++c) to[c] = math::load<T>(from[c]);
}
template <class T, class Storage>
void store_row(const T* from, std::int64_t width, Storage* to) {
  for (std::int64_t c = 0; c < width; ++c) math::store(from[c], to + c);
}

template <class T, class Storage>
void add_row(const T* from, std::int64_t width, Storage* to) {
  for (std::int64_t c = 0; c < width; ++c) math::store(math::load<T>(to[c]) + from[c], to + c);
}

// Calls function(pointer to the element at `offset` of the view, in its own floating-point type).
template <class Function>
void with_element(const problem::View& view, std::int64_t offset, Function function) {
  switch (view.dtype) {
    case TILEWISE_FP64:
      return function(static_cast<double*>(view.data) + offset);
    case TILEWISE_FP32:
      return function(static_cast<float*>(view.data) + offset);
    case TILEWISE_BF16:
      return function(static_cast<math::BFloat16*>(view.data) + offset);
    case TILEWISE_FP16:
      return function(static_cast<math::Float16*>(view.data) + offset);
    case TILEWISE_E4M3:
      return function(static_cast<math::Float8E4M3*>(view.data) + offset);
    case TILEWISE_E5M2:
      return function(static_cast<math::Float8E5M2*>(view.data) + offset);
    default:
      break;  // no other dtype holds floating-point numbers
  }
}

template <class T>
T load_element(const problem::View& view, std::int64_t offset) {
  T value{};
  with_element(view, offset, [&](auto* from) { value = math::load<T>(*from); });
  return value;
}
template <class T>
void store_element(const problem::View& view, std::int64_t offset, T value) {
  with_element(view, offset, [&](auto* to) { math::store(value, to); });
}

template <class T, class Counter>
class Memory {
 public:
  explicit Memory(Counter* counter) : counter_(counter) {}

  // tile (rows.count, width) <- rows of the view.
  void load(const problem::View& view, const Rows& rows, std::int64_t width, T* tile) const {
    for (std::int64_t r = 0; r < rows.count; ++r) {
      with_element(view, view.offset(rows.batch, rows.head, rows.first + r),
                   [&](auto* from) { load_row(from, width, tile + r * width); });
    }
    counter_->read(rows.count * width, problem::dtype_size(view.dtype));
  }

  // Rows of the view <- tile (rows.count, width).
  void store(const problem::View& view, const Rows& rows, std::int64_t width, const T* tile) const {
    for (std::int64_t r = 0; r < rows.count; ++r) {
      with_element(view, view.offset(rows.batch, rows.head, rows.first + r),
                   [&](auto* to) { store_row(tile + r * width, width, to); });
    }
    counter_->write(rows.count * width, problem::dtype_size(view.dtype));
  }

  // Rows of the view += tile (rows.count, width).
  void add(const problem::View& view, const Rows& rows, std::int64_t width, const T* tile) const {
    for (std::int64_t r = 0; r < rows.count; ++r) {
      with_element(view, view.offset(rows.batch, rows.head, rows.first + r),
                   [&](auto* to) { add_row(tile + r * width, width, to); });
    }
    counter_->read(rows.count * width, problem::dtype_size(view.dtype));
    counter_->write(rows.count * width, problem::dtype_size(view.dtype));
  }

  // Loads and stores of arrays of T that the algorithm keeps in slow memory between steps (S and P
  // of three_pass, O of flash1, the gradients that several steps add to). Each element counts as
  // `element_size` bytes, its size in the accounts of the paper: that of an input element.
  void load_array(const T* array, std::int64_t count, std::int64_t element_size, T* tile) const {
    std::memcpy(tile, array, static_cast<std::size_t>(count) * sizeof(T));
    counter_->read(count, element_size);
  }
  void store_array(const T* tile, std::int64_t count, std::int64_t element_size, T* array) const {
    std::memcpy(array, tile, static_cast<std::size_t>(count) * sizeof(T));
    counter_->write(count, element_size);
  }

  // Converts such an array at the end of its life into the caller's tensor and its type. This is
  // not counted: in the paper the array is the tensor.
  void publish(const T* array, const problem::View& view, const Rows& rows,
               std::int64_t width) const {
    NoTraffic uncounted;
    Memory<T, NoTraffic>(&uncounted).store(view, rows, width, array);
  }

  Counter* counter() const { return counter_; }

 private:
  Counter* counter_;
};

}  // namespace tilewise::reference
