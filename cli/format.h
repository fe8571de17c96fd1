// Formats numbers for people.
#pragma once

#include <cstdint>
#include <string>

namespace tilewise::cli {

std::string format_seconds(double seconds);         // "1.23 ms"
std::string format_bytes(double bytes);             // "1.5 MiB"
std::string format_rate(double bytes_per_second);   // "33.4 GB/s"
std::string format_flops(double flops_per_second);  // "110.7 GFLOP/s"
std::string format_error(double error);             // "2.3e-07", "0"
std::string dtype_text(std::int32_t dtype);         // "fp32"

}  // namespace tilewise::cli
