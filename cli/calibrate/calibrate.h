// Measures the limits of this machine during every benchmark, because only ratios to a peak of the
// same run carry over to another run or machine.
#pragma once

#include <cstdint>
#include <string>

namespace tilewise::calibrate {

// Returns the peak of independent fused multiply-adds (multiply, then add, where the target has no
// FMA) on `threads` threads at once, in flops per second: the best of many rounds of about a
// millisecond. `target` is a name of cpu/targets.h. TILEWISE_FP64 is measured in fp64, bf16 on a
// matrix unit if the target has one, and every other dtype in fp32.
double measure_flops(const std::string& target, std::int32_t dtype, std::int32_t threads);

// Returns the bytes per second that `threads` threads read from a buffer larger than the caches
// (256 MiB): the best of many passes.
double measure_read(const std::string& target, std::int32_t threads);

}  // namespace tilewise::calibrate
