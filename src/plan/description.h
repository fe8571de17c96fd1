// Describes what this build can do on this machine: the text of `tilewise info` and of
// tilewise_info().
#pragma once

#include <string>
#include <vector>

#include "plan/host.h"
#include "problem/kernel.h"

namespace tilewise::plan {

// A row of a list: an instruction set or a kernel.
struct Listed {
  std::string name;
  std::string text;     // its description, or what it needs
  bool available;       // true if this machine can run it
  std::string why_not;  // empty if it is available, or if `text` gives the reason
};

std::vector<Listed> listed_targets();
std::vector<Listed> listed_kernels(problem::Operation operation);
std::string description(const Host& host);

}  // namespace tilewise::plan
