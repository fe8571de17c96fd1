// Integer arithmetic on sizes that come from outside: overflow is detected, it never wraps.
#pragma once

#include "math/config.h"

namespace tilewise::problem {

// An int64 that remembers whether it has overflowed.
struct Checked {
  std::int64_t value = 0;
  bool valid = true;
};

TILEWISE_INLINE Checked operator*(Checked a, Checked b) {
  Checked result;
  const bool overflow = __builtin_mul_overflow(a.value, b.value, &result.value);
  result.valid = a.valid && b.valid && !overflow;
  return result;
}

TILEWISE_INLINE Checked operator+(Checked a, Checked b) {
  Checked result;
  const bool overflow = __builtin_add_overflow(a.value, b.value, &result.value);
  result.valid = a.valid && b.valid && !overflow;
  return result;
}

}  // namespace tilewise::problem
