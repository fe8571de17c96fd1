// The functions that target.cc defines for each instruction set. This header includes no library
// headers: a file that is compiled for more than the baseline must not emit one of their inline
// functions.
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
  Arithmetic bf16;  // of bf16 products; run is nullptr if the target has none
  double (*read)(const void* memory, std::int64_t bytes);  // bytes: a multiple of kReadBlock
  static constexpr std::int64_t kReadBlock = 4096;
};

}  // namespace tilewise::calibrate
