// A progress bar on stderr. It appears only on a terminal, and only if the work takes over a
// second.
#pragma once

#include <cstdint>
#include <string>

namespace tilewise::cli {

class Progress {
 public:
  Progress(std::int64_t steps, bool quiet);
  ~Progress();  // erases the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Begins the next step; `what` is shown.
  void step(const std::string& what);

 private:
  std::int64_t steps_;
  std::int64_t done_ = -1;
  double start_;
  bool visible_;
  bool shown_ = false;
};

}  // namespace tilewise::cli
