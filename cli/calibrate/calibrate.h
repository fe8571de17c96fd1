// What this machine can do at most, measured beside every benchmark: only ratios to a peak of the
// same run carry over to another run or machine.
#pragma once

#include <cstdint>
#include <string>

namespace tilewise::calibrate {

// Peak of independent fused multiply-adds (multiply, then add, where the target has no FMA) on
// `threads` threads at once, flops per second: the best of many rounds of about a millisecond.
// `target`: a name of cpu/targets.h. fp64 for TILEWISE_FP64; bf16 on a matrix unit if the target
// has one; every other dtype is computed in fp32.
double measure_flops(const std::string& target, std::int32_t dtype, std::int32_t threads);

// Bytes per second that `threads` threads read from a buffer larger than the caches (256 MiB): the
// best of many passes.
double measure_read(const std::string& target, std::int32_t threads);

}  // namespace tilewise::calibrate
