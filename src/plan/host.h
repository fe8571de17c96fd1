// What this process runs on and was built with: recorded beside every measurement.
#pragma once

#include <cstdint>
#include <string>

namespace tilewise::plan {

struct Host {
  std::string cpu;       // the model, as the system calls it
  std::string features;  // instruction sets that matter here, with spaces between them
  std::string target;    // the instruction set of the library's own choice
  std::string compiler;
  std::string system;  // "Linux 6.1 x86_64"
  std::int64_t cpus;   // that this process may use
};
Host this_host();

}  // namespace tilewise::plan
