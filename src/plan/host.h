// Describes the machine and the build of this process, for the record of every measurement.
#pragma once

#include <cstdint>
#include <string>

namespace tilewise::plan {

struct Host {
  std::string cpu;       // the model, as the system calls it
  std::string features;  // the instruction sets that matter here, separated by spaces
  std::string target;    // the instruction set that the library chooses
  std::string compiler;
  std::string system;  // "Linux 6.1 x86_64"
  std::int64_t cpus;   // CPUs that this process may use
};
Host this_host();

}  // namespace tilewise::plan
