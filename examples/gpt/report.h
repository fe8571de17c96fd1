// What gpt_demo prints. At most 96 columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attention.h"

namespace gpt {

// "1.5 MiB".
std::string format_bytes(std::size_t bytes);

// Largest absolute difference of two curves of one length; NaN if there is one.
double largest_difference(const std::vector<double>& left, const std::vector<double>& right);

// Both curves side by side, a row per `interval` steps with the means of the interval, its largest
// difference, and a bar.
void print_curves(const std::vector<double>& standard, const std::vector<double>& tiled,
                  std::int64_t interval);

// A row per shape.
struct MemoryRow {
  std::int64_t sequences;
  std::int64_t length;
  std::int64_t heads;
  AttentionMemory standard;
  AttentionMemory tiled;
};
void print_memory(const std::vector<MemoryRow>& rows);

// Indented and wrapped; what is not printable ASCII shows as '.'.
void print_text(const std::string& text);

// A line on stderr that says how far a run is; nothing unless stderr is a terminal.
class ProgressLine {
 public:
  ProgressLine(std::string what, std::int64_t steps);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void update(std::int64_t step, double loss);

 private:
  std::string what_;
  std::int64_t steps_;
  bool visible_;
};

}  // namespace gpt
