// What target.cc gives for each instruction set. No library headers: an inline function of theirs
// must not be emitted from a file that is compiled for more than the baseline.
#pragma once

#include <cstdint>

namespace tilewise::calibrate {

// The loops of one instruction set.
struct PeakLoops {
  struct Arithmetic {
    double (*run)(std::int64_t iterations);
    std::int64_t flops;  // per iteration
  };
  Arithmetic fp32;
  Arithmetic fp64;
  Arithmetic bf16;  // of products in bf16; run is nullptr where there are none
  double (*read)(const void* memory, std::int64_t bytes);  // a multiple of kReadBlock
  static constexpr std::int64_t kReadBlock = 4096;
};

}  // namespace tilewise::calibrate
