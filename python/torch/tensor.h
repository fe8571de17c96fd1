// Tensors and arguments of PyTorch's operators: ownership, views of them as tilewise_tensor, and
// the stack that carries the arguments of an operator.
#pragma once

#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "shim.h"

namespace tilewise::torch_binding {

// An owned reference to a tensor, or none.
class Owned {
 public:
  Owned() = default;
  explicit Owned(Tensor tensor) : tensor_(tensor) {}
  Owned(Owned&& other) noexcept : tensor_(std::exchange(other.tensor_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(tensor_, other.tensor_);
    return *this;
  }
  ~Owned() {
    if (tensor_ != nullptr) torch().aoti_torch_delete_tensor_object(tensor_);
  }
  explicit operator bool() const { return tensor_ != nullptr; }
  Tensor get() const { return tensor_; }
  Tensor release() { return std::exchange(tensor_, nullptr); }

 private:
  Tensor tensor_ = nullptr;
};

// Returns a view for the library; an absent tensor gives an absent view. Throws, naming the
// argument, for a device kind or dtype that the library does not know, and for more than four
// dimensions.
tilewise_tensor view(const char* name, const Owned& tensor);

// Returns an uninitialised tensor on the device of `like`. Strides are in elements.
Owned allocate(std::int32_t rank, const std::int64_t* shape, const std::int64_t* strides,
               std::int32_t torch_dtype, const tilewise_tensor& like);

// Returns an uninitialised tensor of `like`'s shape with `last` columns. Its dimensions have the
// order of like's in memory, with the last one innermost, and without gaps. _meta.py has the same
// rule for tracing.
Owned allocate_like(const tilewise_tensor& like, std::int64_t last, std::int32_t torch_dtype);

// Returns PyTorch's number of a TILEWISE_ dtype.
std::int32_t torch_dtype(std::int32_t dtype);

// Returns the tensor itself if its innermost stride is 1, else a copy for which it is.
Owned with_dense_rows(const char* name, Owned tensor);

// Reads the arguments of an operator in the order of its schema, and takes ownership of the
// tensors. Read all of them before anything can throw, so that a refused call leaks nothing.
class Arguments {
 public:
  explicit Arguments(const Value* stack) : next_(stack) {}

  Owned tensor() { return Owned(take<Tensor>()); }
  Owned optional_tensor() {
    const std::optional<Value> value = optional();
    return value ? Owned(from_value<Tensor>(*value)) : Owned();
  }
  std::int64_t integer() { return take<std::int64_t>(); }
  double number() { return take<double>(); }
  std::optional<double> optional_number() {
    const std::optional<Value> value = optional();
    return value ? std::optional(from_value<double>(*value)) : std::nullopt;
  }
  bool boolean() { return take<bool>(); }

 private:
  template <class T>
  static T from_value(Value value) {
    static_assert(sizeof(T) <= sizeof(Value), "an argument fits a stack entry");
    T result;
    std::memcpy(&result, &value, sizeof(T));
    return result;
  }
  template <class T>
  T take() {
    return from_value<T>(*next_++);
  }
  // Reads an optional argument, which is a null pointer or an owned pointer to a value.
  std::optional<Value> optional() {
    Value* const pointer = take<Value*>();
    if (pointer == nullptr) return std::nullopt;
    const Value value = *pointer;
    delete pointer;
    return value;
  }

  const Value* next_;
};

inline Value to_value(Owned tensor) {
  const Tensor handle = tensor.release();
  Value value = 0;
  std::memcpy(&value, &handle, sizeof(handle));
  return value;
}

}  // namespace tilewise::torch_binding
