#include "table.h"

#include <fmt/format.h>

#include <algorithm>

namespace tilewise::cli {

std::string Table::text() const {
  std::vector<std::size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  std::size_t total = 0;
  for (const std::size_t width : widths) total += width + 2;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (std::size_t c = 0; c < rows_[r].size(); ++c) {
      line += c == 0 ? fmt::format("{:<{}}", rows_[r][c], widths[c])
                     : fmt::format("  {:>{}}", rows_[r][c], widths[c]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    if (r == 0) text += std::string(total - 2, '-') + "\n";
  }
  return text;
}

}  // namespace tilewise::cli
