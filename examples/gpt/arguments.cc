#include "arguments.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>

namespace gpt {

Arguments::Arguments(int argc, char** argv, const std::vector<std::string>& names) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw UsageError("unknown argument '" + name + "'; see --help");
    if (i + 1 == argc) throw UsageError(name + " needs a value");
    values_[name] = argv[++i];
  }
}

std::string Arguments::text(const std::string& name) const {
  const auto found = values_.find(name);
  return found != values_.end() ? found->second : "";
}

std::int64_t Arguments::integer(const std::string& name, std::int64_t low, std::int64_t high,
                                std::int64_t fallback) const {
  if (values_.count(name) == 0) return fallback;
  const std::string text = values_.at(name);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    throw UsageError(name + " is '" + text + "', must be an integer from " + std::to_string(low) +
                     " to " + std::to_string(high));
  }
  return value;
}

std::string Arguments::required(const std::string& name) const {
  if (text(name).empty()) throw UsageError(name + " is missing; see --help");
  return text(name);
}

int run_program(int argc, char** argv, const char* help, int (*run)(int argc, char** argv)) {
  const std::string program = std::string(argv[0]).substr(std::string(argv[0]).rfind('/') + 1);
  try {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--help") == 0) {
        std::fputs(help, stdout);
        return 0;
      }
    }
    return run(argc, argv);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "%s: %s\n", program.c_str(), error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program.c_str(), error.what());
    return 1;
  }
}

}  // namespace gpt
