// Division by a number that is known before the launch, as a product and a shift. The GPU divides
// in some 25 instructions, each of which needs the one before it.
#pragma once

#include <cstdint>

#include "math/config.h"
#include "math/integer.h"

namespace tilewise::cuda::tile {

// T. Granlund, P. L. Montgomery: Division by Invariant Integers using Multiplication (1994), for
// dividends below 2^31. Let 2^(p - 1) < value <= 2^p. Then factor = ceil(2^(31 + p) / value)
// exceeds 2^(31 + p) / value by less than 1, which is at most 2^p / value. Multiplied by a dividend
// below 2^31, the error stays below 2^(31 + p) / value, too little to reach the next quotient.
class FastDivmod {
 public:
  FastDivmod() = default;
  // Prepares the division by `value`, at least 1. Host only.
  explicit FastDivmod(std::int32_t value) : value_(value) {
    const auto divisor = static_cast<std::uint32_t>(value);
    if (divisor > 1) shift_ += 32 - static_cast<std::uint32_t>(__builtin_clz(divisor - 1));
    factor_ = static_cast<std::uint32_t>(math::ceil_div((std::uint64_t{1} << shift_), divisor));
  }

  TILEWISE_INLINE std::int32_t value() const { return value_; }

  // The dividend is at least 0.
  TILEWISE_INLINE friend std::int32_t operator/(std::int32_t dividend, const FastDivmod& by) {
    return static_cast<std::int32_t>(
        std::uint64_t{static_cast<std::uint32_t>(dividend)} * by.factor_ >> by.shift_);
  }
  TILEWISE_INLINE friend std::int32_t operator%(std::int32_t dividend, const FastDivmod& by) {
    return dividend - dividend / by * by.value_;
  }

 private:
  static constexpr std::uint32_t kBits = 31;
  std::int32_t value_ = 1;
  std::uint32_t factor_ = std::uint32_t{1} << kBits;
  std::uint32_t shift_ = kBits;
};

}  // namespace tilewise::cuda::tile
