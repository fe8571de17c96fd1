#include "format.h"

#include <fmt/format.h>

#include <cmath>

#include "problem/problem.h"

namespace tilewise::cli {
namespace {

// Formats a number with three digits and a unit; each unit is `step` times the previous one.
template <std::size_t N>
std::string scaled(double value, double step, const char* const (&units)[N]) {
  std::size_t unit = 0;
  while (unit + 1 < N && std::abs(value) >= step * 0.9995) {
    value /= step;
    ++unit;
  }
  const double magnitude = std::abs(value);
  const int digits = value == 0 || magnitude >= 99.95 ? 0 : (magnitude >= 9.995 ? 1 : 2);
  return fmt::format("{:.{}f} {}", value, digits, units[unit]);
}

}  // namespace

std::string format_seconds(double seconds) {
  static constexpr const char* kUnits[] = {"ns", "us", "ms"};
  if (seconds >= 0.9995) return fmt::format("{:.2f} s", seconds);
  return scaled(seconds * 1e9, 1000, kUnits);
}

std::string format_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{:.0f} B", bytes);
  return scaled(bytes, 1024, kUnits);
}

std::string format_rate(double rate) {
  static constexpr const char* kUnits[] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
  return scaled(rate, 1000, kUnits);
}

std::string format_flops(double rate) {
  static constexpr const char* kUnits[] = {"FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s"};
  return scaled(rate, 1000, kUnits);
}

std::string format_error(double error) {
  if (error == 0) return "0";
  return std::isnan(error) ? "not finite" : fmt::format("{:.1e}", error);
}

std::string dtype_text(std::int32_t dtype) { return problem::dtype_name(dtype); }

}  // namespace tilewise::cli
