#include "report.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace gpt {
namespace {

double mean(const std::vector<double>& values, std::size_t first, std::size_t last) {
  double sum = 0;
  for (std::size_t i = first; i < last; ++i) sum += values[i];
  return sum / static_cast<double>(last - first);
}

std::string bar(double value, double full) {
  constexpr double kWidth = 32;
  return std::string(
      static_cast<std::size_t>(std::lround(kWidth * std::clamp(value / full, 0.0, 1.0))), '#');
}

}  // namespace

std::string format_bytes(std::size_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, value < 10 && unit > 0 ? "%.1f %s" : "%.0f %s", value,
                units[unit]);
  return text;
}

double largest_difference(const std::vector<double>& left, const std::vector<double>& right) {
  double largest = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    const double difference = std::fabs(left[i] - right[i]);
    if (std::isnan(difference)) return difference;
    largest = std::max(largest, difference);
  }
  return largest;
}

void print_curves(const std::vector<double>& standard, const std::vector<double>& tiled,
                  std::int64_t interval) {
  std::printf("      steps   standard      tiled   largest difference\n");
  const std::size_t step = static_cast<std::size_t>(interval);
  const double full = mean(standard, 0, std::min(step, standard.size()));
  for (std::size_t first = 0; first < standard.size(); first += step) {
    const std::size_t last = std::min(standard.size(), first + step);
    const auto at = [](std::size_t index) { return static_cast<std::ptrdiff_t>(index); };
    const double difference =
        largest_difference({standard.begin() + at(first), standard.begin() + at(last)},
                           {tiled.begin() + at(first), tiled.begin() + at(last)});
    const double standard_mean = mean(standard, first, last);
    std::printf("  %4zu - %4zu   %8.5f   %8.5f   %8.1e   %s\n", first + 1, last, standard_mean,
                mean(tiled, first, last), difference, bar(standard_mean, full).c_str());
  }
}

void print_memory(const std::vector<MemoryRow>& rows) {
  std::printf("                            standard                          tiled\n");
  std::printf("  batch x length     workspace     probabilities      workspace           LSE\n");
  for (const MemoryRow& row : rows) {
    const std::size_t pairs =
        static_cast<std::size_t>(row.sequences * row.heads * row.length * row.length);
    char shape[32];
    std::snprintf(shape, sizeof shape, "%lld x %lld", static_cast<long long>(row.sequences),
                  static_cast<long long>(row.length));
    const auto peak = [](const AttentionMemory& memory) {
      return format_bytes(std::max(memory.forward_workspace, memory.backward_workspace));
    };
    std::printf("  %-14s %13s %17s %14s %13s\n", shape, peak(row.standard).c_str(),
                format_bytes(pairs * sizeof(float)).c_str(), peak(row.tiled).c_str(),
                format_bytes(row.tiled.saved_lse).c_str());
  }
}

void print_text(const std::string& text) {
  constexpr std::size_t kWidth = 88;
  std::string line;
  for (const char c : text + "\n") {
    if (c != '\n') line.push_back(c >= ' ' && c <= '~' ? c : '.');
    if (c == '\n' || line.size() == kWidth) {
      std::printf("  | %s\n", line.c_str());
      line.clear();
    }
  }
}

ProgressLine::ProgressLine(std::string what, std::int64_t steps)
    : what_(std::move(what)), steps_(steps), visible_(isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (visible_) std::fprintf(stderr, "\r\033[K");
}

void ProgressLine::update(std::int64_t step, double loss) {
  if (!visible_) return;
  std::fprintf(stderr, "\r\033[K  %s: step %lld of %lld, loss %.3f", what_.c_str(),
               static_cast<long long>(step + 1), static_cast<long long>(steps_), loss);
}

}  // namespace gpt
