// The subcommands. Each adds itself to the program and returns a function that runs it and returns
// the exit code: 0 ok, 1 a check failed. Usage and input errors are exceptions (exit code 2).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "flags.h"

namespace tilewise::cli {

struct Command {
  std::shared_ptr<Flags> flags;
  std::function<int()> run;
};

Command add_run(CLI::App& program);
Command add_compare(CLI::App& program);
Command add_explain(CLI::App& program);
Command add_bench(CLI::App& program, const std::string& command);
Command add_check(CLI::App& program);
Command add_info(CLI::App& program);

}  // namespace tilewise::cli
