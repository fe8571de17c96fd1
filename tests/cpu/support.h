// What the tests of the parts share: typed tests over (instruction set, arithmetic type), random
// numbers, poisoned memory and comparison of bits.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "cpu/probes.h"
#include "math/number.h"
#include "verify/random.h"

namespace tilewise::cpu {

// The types of the typed tests. Where the best instruction set is the generic one, both are run.
template <class T, bool kBest>
struct Part {
  using Number = T;
  static const Probes& all() { return kBest ? best_probes() : generic_probes(); }
  static const TypedProbes<T>& probes() {
    if constexpr (sizeof(T) == 8) {
      return all().of_double;
    } else {
      return all().of_float;
    }
  }
};
using Parts = ::testing::Types<Part<float, true>, Part<double, true>, Part<float, false>,
                               Part<double, false>>;
struct PartName {
  template <class P>
  static std::string GetName(int) {
    return std::string(sizeof(typename P::Number) == 8 ? "fp64_" : "fp32_") +
           (&P::all() == &best_probes() && &best_probes() != &generic_probes() ? "best"
                                                                               : "generic");
  }
};

// A std::vector that is indexed by std::int64_t, as the kernels index.
template <class T>
class Array {
 public:
  Array() = default;
  explicit Array(std::int64_t count, T value = T())
      : items_(static_cast<std::size_t>(count), value) {}
  Array(std::initializer_list<T> items) : items_(items) {}
  Array(const T* begin, const T* end) : items_(begin, end) {}

  T& operator[](std::int64_t i) { return items_[static_cast<std::size_t>(i)]; }
  const T& operator[](std::int64_t i) const { return items_[static_cast<std::size_t>(i)]; }
  T* data() { return items_.data(); }
  const T* data() const { return items_.data(); }
  T* begin() { return data(); }
  T* end() { return data() + size(); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size(); }
  std::int64_t size() const { return static_cast<std::int64_t>(items_.size()); }
  void push_back(T item) { items_.push_back(item); }

 private:
  std::vector<T> items_;
};

// A number that no kernel computes: it shows what was not written.
template <class T>
inline constexpr T kPoison = T(-12345.678);

template <class T>
Array<T> poisoned(std::int64_t count) {
  return Array<T>(count, kPoison<T>);
}

template <class T>
Array<T> random_numbers(std::int64_t count, std::uint64_t seed) {
  verify::Random random(seed);
  Array<T> numbers(count);
  for (T& x : numbers) x = static_cast<T>(random.normal());
  return numbers;
}

template <class T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

// a * b + c as multiply_add() of the instruction set computes it.
template <class T>
T multiply_add(bool fused, T a, T b, T c) {
  if (fused) return std::fma(a, b, c);
  const volatile T product = a * b;
  return product + c;
}

// Rows of a dtype with their View: (count, stride), of which `width` columns are the matrix.
class RowsOfDtype {
 public:
  RowsOfDtype(std::int32_t dtype, std::int64_t count, std::int64_t width, std::int64_t stride,
              std::uint64_t seed)
      : bytes_(count * stride * 8), count_(count), width_(width) {
    view_.data = bytes_.data();
    view_.dtype = dtype;
    view_.row = stride;
    view_.column = 1;
    verify::Random random(seed);
    for (std::int64_t r = 0; r < count; ++r) {
      for (std::int64_t c = 0; c < stride; ++c) set(r, c, random.normal());
    }
  }

  void set(std::int64_t r, std::int64_t c, double value) {
    const std::int64_t at = r * view_.row + c;
    switch (view_.dtype) {
      case TILEWISE_FP64:
        static_cast<double*>(view_.data)[at] = value;
        break;
      case TILEWISE_FP32:
        static_cast<float*>(view_.data)[at] = static_cast<float>(value);
        break;
      case TILEWISE_BF16:
        static_cast<math::BFloat16*>(view_.data)[at] = math::to_bfloat16(static_cast<float>(value));
        break;
      default:
        static_cast<math::Float16*>(view_.data)[at] = math::to_float16(static_cast<float>(value));
    }
  }
  double at(std::int64_t r, std::int64_t c) const {
    const std::int64_t i = r * view_.row + c;
    switch (view_.dtype) {
      case TILEWISE_FP64:
        return static_cast<const double*>(view_.data)[i];
      case TILEWISE_FP32:
        return static_cast<double>(static_cast<const float*>(view_.data)[i]);
      case TILEWISE_BF16:
        return static_cast<double>(
            math::to_float(static_cast<const math::BFloat16*>(view_.data)[i]));
      default:
        return static_cast<double>(
            math::to_float(static_cast<const math::Float16*>(view_.data)[i]));
    }
  }
  ProbeRows rows() const { return {&view_, count_, width_}; }
  const void* data() const { return view_.data; }

 private:
  Array<unsigned char> bytes_;
  problem::View view_;
  std::int64_t count_;
  std::int64_t width_;
};

inline constexpr std::int32_t kFloatingDtypes[] = {TILEWISE_FP64, TILEWISE_FP32, TILEWISE_BF16,
                                                   TILEWISE_FP16};
// fp32 kernels never get fp64 inputs.
template <class T>
bool is_input(std::int32_t dtype) {
  return (dtype == TILEWISE_FP64) == (sizeof(T) == 8);
}

}  // namespace tilewise::cpu
