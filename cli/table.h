// Text tables: the first column is aligned to the left, the others to the right.
#pragma once

#include <string>
#include <vector>

namespace tilewise::cli {

class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  // Returns the table with a rule under the header; each line ends with a newline.
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tilewise::cli
