// The seed of the random numbers that tests draw.
//
// By default it is fixed, so that a test gives the same result in every run and for everybody.
// TILEWISE_TEST_SEED=n sets it to n, and TILEWISE_TEST_SEED=random draws a fresh one, as a stage of
// .ci/run does. Every program prints the seed that it uses, and so does every failure.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

namespace tilewise::tests {

inline constexpr std::uint64_t kDefaultSeed = 1;

inline std::uint64_t choose_seed() {
  const char* const variable = std::getenv("TILEWISE_TEST_SEED");
  const std::string given = variable == nullptr ? "" : variable;
  std::uint64_t seed = kDefaultSeed;
  if (given == "random") {
    seed = std::random_device()();
  } else if (!given.empty()) {
    seed = std::strtoull(given.c_str(), nullptr, 10);
  }
  std::printf("TILEWISE_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);  // a test may fork
  return seed;
}

// Returns the seed of this run.
inline std::uint64_t run_seed() {
  static const std::uint64_t seed = choose_seed();
  return seed;
}

}  // namespace tilewise::tests

// Prints the seed with every failure in its scope.
#define TILEWISE_TRACE_SEED() \
  SCOPED_TRACE("TILEWISE_TEST_SEED=" + std::to_string(tilewise::tests::run_seed()))
