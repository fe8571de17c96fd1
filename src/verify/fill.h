// Fills tensors with numbers of given data.
#pragma once

#include <cstdint>
#include <functional>

#include "verify/data.h"

namespace tilewise::verify {

// Returns the next random number of N(0, 1).
using NormalSource = std::function<double()>;

// Fills q, k, v or dout of the request, (B, S, H, D), (B, H, S, D) or packed (T, H, D): draws a
// number for every element, in row-major order, and changes it as the data says. `base` seeds what
// the data draws besides. "Along the keys" counts from the start of each sequence; one NaN is at a
// third of each sequence, in its first head. The tokens of cu_seqlens must be filled in.
void fill_rows(const Data& data, const tilewise_problem& request, TensorMember member,
               std::uint64_t base, const NormalSource& normal);

// Fills the bias, of any shape that broadcasts to (B, H, Sq, Sk).
void fill_bias(const Data& data, const tilewise_tensor& bias, const NormalSource& normal);

}  // namespace tilewise::verify
