// The calibration loops in one instruction set; compiled once for each, like src/cpu/target.cc.
#include "calibrate/loops.h"
#include "cpu/amx/tile_product.h"
#include "cpu/simd/vector.h"

namespace tilewise::calibrate::TILEWISE_TARGET {
namespace {

using cpu::TILEWISE_TARGET::kRegisters;
using cpu::TILEWISE_TARGET::Vec;

// Latency 4 to 6 cycles times two operations a cycle needs 8 to 12 chains; two registers hold the
// operands.
constexpr int kChains = kRegisters == 32 ? 20 : 12;

template <class T>
double multiply_add_chains(std::int64_t iterations) {
  Vec<T> sums[kChains];
  for (int c = 0; c < kChains; ++c) sums[c] = Vec<T>(static_cast<T>(c));
  const Vec<T> factor(T(0.5));
  const Vec<T> addend(T(1));
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 20
    for (int c = 0; c < kChains; ++c) sums[c] = multiply_add(sums[c], factor, addend);
  }
  Vec<T> total(T(0));
  for (int c = 0; c < kChains; ++c) total = total + sums[c];
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
// Four sums, as a kernel has them; no operand is loaded.
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
double dot_chains(std::int64_t iterations) {
  using Pair = cpu::TILEWISE_TARGET::Bf16Pair;
  Vec<float> sums[kChains];
  for (int c = 0; c < kChains; ++c) sums[c] = Vec<float>(static_cast<float>(c));
  const Vec<Pair> factor(Pair{0x3F003F00});  // 0.5, 0.5
  const Vec<Pair> other(Pair{0x3F803F80});
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 20
    for (int c = 0; c < kChains; ++c) sums[c] = multiply_add(factor, other, sums[c]);
  }
  Vec<float> total(0.0f);
  for (int c = 0; c < kChains; ++c) total = total + sums[c];
  return static_cast<double>(total.v[0]);
}
constexpr PeakLoops::Arithmetic kBf16 = {dot_chains, 4 * kChains* Vec<float>::kLanes};
#else
constexpr PeakLoops::Arithmetic kBf16 = {nullptr, 0};
#endif

}  // namespace

extern const PeakLoops kPeakLoops;
const PeakLoops kPeakLoops = {
    {multiply_add_chains<float>, 2 * kChains* Vec<float>::kLanes},
    {multiply_add_chains<double>, 2 * kChains* Vec<double>::kLanes},
    kBf16,
    read_memory,
};

}  // namespace tilewise::calibrate::TILEWISE_TARGET
