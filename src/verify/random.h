// Random numbers that are the same on every machine and standard library: SplitMix64 (Steele, Lea
// and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace tilewise::verify {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // in [0, 1)
  bool chance(double probability) { return uniform() < probability; }

  // Returns an integer in first .. last, both included.
  std::int64_t between(std::int64_t first, std::int64_t last) {
    const std::uint64_t span = static_cast<std::uint64_t>(last - first) + 1;
    return first + static_cast<std::int64_t>(bits() % span);
  }

  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[between(0, static_cast<std::int64_t>(choices.size()) - 1)];
  }

  // Returns a sample of N(0, 1), by Box and Muller.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }

 private:
  std::uint64_t state_;
};

}  // namespace tilewise::verify
