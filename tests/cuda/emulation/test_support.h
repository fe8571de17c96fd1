// For the tests of the emulation: launches, and memory of the emulated device.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

#include "cuda/emulation/device_memory.h"
#include "cuda/host/launch.cuh"

namespace tilewise::cuda {

inline std::string message_of(cudaError_t error) {
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

// What was wrong with a launch, or an empty string.
template <class... Arguments>
std::string message_of(void (*kernel)(Arguments...), const Grid& grid,
                       const std::type_identity_t<Arguments>&... arguments) {
  return message_of(launch(kernel, grid, nullptr, arguments...));
}

// Memory of the device for `count` numbers.
template <class T>
class Numbers {
 public:
  explicit Numbers(std::size_t count)
      : data_(static_cast<T*>(emulation::allocate(count * sizeof(T)))) {}
  ~Numbers() { emulation::release(data_); }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;
  T* data() { return data_; }
  T& operator[](std::size_t i) { return data_[i]; }

 private:
  T* data_;
};

}  // namespace tilewise::cuda
