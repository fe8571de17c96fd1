// Prints the results of gpt_demo, in at most 96 columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attention.h"

namespace gpt {

// Returns a text like "1.5 MiB".
std::string format_bytes(std::size_t bytes);

// Returns the largest absolute difference of two curves of the same length; NaN if there is one.
double largest_difference(const std::vector<double>& left, const std::vector<double>& right);

// Prints both curves next to each other, a row per `interval` steps with the means of the interval,
// its largest difference, and a bar.
void print_curves(const std::vector<double>& standard, const std::vector<double>& tiled,
                  std::int64_t interval);

// One shape of the table of memory.
struct MemoryRow {
  std::int64_t sequences;
  std::int64_t length;
  std::int64_t heads;
  AttentionMemory standard;
  AttentionMemory tiled;
};
void print_memory(const std::vector<MemoryRow>& rows);

// Prints a text indented and wrapped; characters that are not printable ASCII become '.'.
void print_text(const std::string& text);

// A line on stderr that shows the progress of a run; nothing unless stderr is a terminal.
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
