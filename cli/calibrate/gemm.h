// The matrix product rate of a GPU with its vendor's library, which attention is compared with.
#pragma once

#include <cstdint>

namespace tilewise::calibrate {

// Returns the flops per second of a bf16 8192^3 product by cuBLAS (fp32 sums, random numbers), the
// median of ten event-timed runs; 0 if libcublas is not found at run time.
double measure_gemm(std::int32_t device);

}  // namespace tilewise::calibrate
