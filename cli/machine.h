// What this program runs on and was built with: recorded beside every measurement.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tilewise::cli {

struct Machine {
  std::string cpu;       // the model, as the system calls it
  std::string features;  // instruction sets that matter here, with spaces between them
  std::string target;    // the instruction set of the library's own choice
  std::string compiler;
  std::string system;  // "Linux 6.1 x86_64"
  std::int64_t cpus;   // that this process may use
};
Machine this_machine();
nlohmann::json machine_json(const Machine& machine);

}  // namespace tilewise::cli
