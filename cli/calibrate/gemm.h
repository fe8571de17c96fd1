// The matrix rate of a GPU, as its vendor's library reaches it: what attention is measured against.
#pragma once

#include <cstdint>

namespace tilewise::calibrate {

// Flops of a bf16 8192^3 product by cuBLAS (fp32 sums, random numbers), the median of ten
// event-timed runs; 0 if libcublas is not found at run time.
double measure_gemm(std::int32_t device);

}  // namespace tilewise::calibrate
