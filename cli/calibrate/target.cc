// The calibration loops in one instruction set; compiled once for each, like src/cpu/target.cc.
#include "calibrate/loops.h"
#include "cpu/simd.h"

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

}  // namespace

extern const PeakLoops kPeakLoops;
const PeakLoops kPeakLoops = {
    {multiply_add_chains<float>, 2 * kChains* Vec<float>::kLanes},
    {multiply_add_chains<double>, 2 * kChains* Vec<double>::kLanes},
    read_memory,
};

}  // namespace tilewise::calibrate::TILEWISE_TARGET
