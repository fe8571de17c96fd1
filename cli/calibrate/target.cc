// The calibration loops of one instruction set. Compiled once for each, like
// src/cpu/targets/simd.cc.
#include "calibrate/loops.h"
#include "cpu/amx/tile_product.h"
#include "cpu/simd/vector.h"

namespace tilewise::calibrate::TILEWISE_TARGET {
namespace {

using cpu::TILEWISE_TARGET::kRegisters;
using cpu::TILEWISE_TARGET::Vec;

// A latency of 4 to 6 cycles times two operations a cycle needs 8 to 12 independent sums; two
// registers hold the operands.
constexpr int kPartialSums = kRegisters == 32 ? 20 : 12;

template <class T>
double multiply_add_sums(std::int64_t iterations) {
  Vec<T> sums[kPartialSums];
  for (int c = 0; c < kPartialSums; ++c) sums[c] = Vec<T>(static_cast<T>(c));
  const Vec<T> factor(T(0.5));
  const Vec<T> addend(T(1));
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 20
    for (int c = 0; c < kPartialSums; ++c) sums[c] = multiply_add(sums[c], factor, addend);
  }
  Vec<T> total(T(0));
  for (int c = 0; c < kPartialSums; ++c) total = total + sums[c];
  return static_cast<double>(total.v[0]);
}

double read_block(const float* from, std::int64_t count) {
  Vec<float> sums[8];
  for (Vec<float>& sum : sums) sum = Vec<float>(0.0f);
  constexpr std::int64_t kStep = 8 * Vec<float>::kLanes;
  for (std::int64_t i = 0; i < count; i += kStep) {
    for (int s = 0; s < 8; ++s) {
      sums[s] = sums[s] + Vec<float>::load(from + i + s * Vec<float>::kLanes);
    }
  }
  double total = 0;
  for (const Vec<float>& sum : sums) total += static_cast<double>(sum.v[0]);
  return total;
}

double read_memory(const void* memory, std::int64_t bytes) {
  return read_block(static_cast<const float*>(memory), bytes / 4);
}

#if TILEWISE_HAS_AMX
// The loop keeps four sums, as a kernel does, and loads no operand.
double tile_products(std::int64_t iterations) {
  cpu::TILEWISE_TARGET::configure_tiles();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(6);
  for (std::int64_t i = 0; i < iterations; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 6);
    _tile_dpbf16ps(2, 4, 6);
    _tile_dpbf16ps(3, 4, 6);
  }
  cpu::TILEWISE_TARGET::release_tiles();
  return 0;
}
constexpr PeakLoops::Arithmetic kBf16 = {tile_products, 4 * 2 * 16 * 16 * 32};
#elif TILEWISE_HAS_AVX512_BF16
double dot_sums(std::int64_t iterations) {
  using cpu::TILEWISE_TARGET::Bf16Pair;
  Vec<float> sums[kPartialSums];
  for (int c = 0; c < kPartialSums; ++c) sums[c] = Vec<float>(static_cast<float>(c));
  const Vec<Bf16Pair> factor(Bf16Pair{0x3F003F00});  // 0.5, 0.5
  const Vec<Bf16Pair> other(Bf16Pair{0x3F803F80});
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 20
    for (int c = 0; c < kPartialSums; ++c) sums[c] = multiply_add(factor, other, sums[c]);
  }
  Vec<float> total(0.0f);
  for (int c = 0; c < kPartialSums; ++c) total = total + sums[c];
  return static_cast<double>(total.v[0]);
}
constexpr PeakLoops::Arithmetic kBf16 = {dot_sums, 4 * kPartialSums* Vec<float>::kLanes};
#else
constexpr PeakLoops::Arithmetic kBf16 = {nullptr, 0};
#endif

}  // namespace

extern const PeakLoops kPeakLoops;
const PeakLoops kPeakLoops = {
    {multiply_add_sums<float>, 2 * kPartialSums* Vec<float>::kLanes},
    {multiply_add_sums<double>, 2 * kPartialSums* Vec<double>::kLanes},
    kBf16,
    read_memory,
};

}  // namespace tilewise::calibrate::TILEWISE_TARGET
