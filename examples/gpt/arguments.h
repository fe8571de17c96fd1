// The arguments of a program: --name value, in any order.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpt {

// A wrong argument; what() is one line.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Arguments {
 public:
  // Throws UsageError for an argument that is not in `names`, or has no value.
  Arguments(int argc, char** argv, const std::vector<std::string>& names);

  std::string text(const std::string& name) const;  // "" if not given
  // Throws UsageError for anything but a whole number within the limits.
  std::int64_t integer(const std::string& name, std::int64_t low, std::int64_t high,
                       std::int64_t fallback) const;
  // Throws UsageError if the argument is missing.
  std::string required(const std::string& name) const;

 private:
  std::map<std::string, std::string> values_;
};

// Runs a program: prints `help` for --help, and turns exceptions into one line on stderr and an
// exit status, 2 for UsageError.
int run_program(int argc, char** argv, const char* help, int (*run)(int argc, char** argv));

}  // namespace gpt
