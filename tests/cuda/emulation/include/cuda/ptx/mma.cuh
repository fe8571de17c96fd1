// src/cuda/ptx/mma.cuh for the emulation. PTX leaves the order of a product's additions open. Here
// it is from the first summand to the last one, each sum rounded to float.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/emulation/block.h"
#include "cuda/emulation/work.h"
#include "math/number.h"

namespace tilewise::cuda::ptx {

// The arguments of a lane to mma.m16n8k16.
struct Multiply {
  float* d;                // (4)
  const std::uint32_t* a;  // (4)
  std::uint32_t b[2];
};

// The 16-bit number in the lower (0) or upper (1) half of a register.
template <bool kFp16>
float half(std::uint32_t pair, unsigned which) {
  const auto bits = static_cast<std::uint16_t>(pair >> 16 * which);
  if constexpr (kFp16) return math::to_float(math::Float16{bits});
  return math::to_float(math::BFloat16{bits});
}

template <bool kFp16>
void perform_multiply(const emulation::Requests& requests) {
  emulation::work.multiply_adds += 16 * 8 * 16;
  float a[16][16];  // (row, k)
  float b[16][8];   // (k, column)
  for (unsigned lane = 0; lane < 32; ++lane) {
    const auto* const own = static_cast<const Multiply*>(requests[lane]);
    const unsigned row = lane / 4;
    const unsigned pair = lane % 4 * 2;
    for (unsigned i = 0; i < 8; ++i) {
      a[row + i / 2 % 2 * 8][pair + i / 4 * 8 + i % 2] = half<kFp16>(own->a[i / 2], i % 2);
    }
    for (unsigned i = 0; i < 4; ++i)
      b[pair + i / 2 * 8 + i % 2][row] = half<kFp16>(own->b[i / 2], i % 2);
  }
  float d[16][8];  // (row, column)
  for (unsigned lane = 0; lane < 32; ++lane) {
    const auto* const own = static_cast<const Multiply*>(requests[lane]);
    for (unsigned i = 0; i < 4; ++i) d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = own->d[i];
  }
  for (unsigned row = 0; row < 16; ++row) {
    float first[8];
    for (unsigned column = 0; column < 8; ++column) first[column] = d[row][column];
    for (unsigned k = 0; k < 16; ++k) {
      for (unsigned column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
    }
    for (unsigned column = 0; column < 8; ++column) {
      if (std::isfinite(d[row][column])) continue;
      // Tensor cores do not round a product to float: one that would overflow leaves an infinite
      // sum as it is (seen on an H100).
      double sum = first[column];
      for (unsigned k = 0; k < 16; ++k)
        sum += static_cast<double>(a[row][k]) * static_cast<double>(b[k][column]);
      d[row][column] = static_cast<float>(sum);
    }
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    auto* const own = static_cast<Multiply*>(requests[lane]);
    for (unsigned i = 0; i < 4; ++i) own->d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

template <bool kFp16>
void mma_m16n8k16(float* d, const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1) {
  Multiply own = {d, a, {b0, b1}};
  emulation::meet_warp(~0u, perform_multiply<kFp16>, &own);
}

}  // namespace tilewise::cuda::ptx
