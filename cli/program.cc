// The command line program. Exit codes: 0 ok, 1 a check failed, 2 wrong usage or input, or output
// that could not be written.
#include <fcntl.h>
#include <fmt/format.h>
#include <tilewise/tilewise.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "commands.h"
#include "io/temporaries.h"
#include "program.h"

namespace tilewise::cli {
namespace {

constexpr int kUsageError = 2;

// Prints one line to stderr and returns exit code 2.
int complain(const std::string& command, std::string message) {
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  fmt::print(stderr, "tilewise{}: {}\n", command.empty() ? "" : " " + command, message);
  return kUsageError;
}

// A standard descriptor that is closed at the start would be the number of the next file that is
// opened, and the report would go into that file. A descriptor that cannot be written takes it.
void occupy_closed_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) continue;
    const int flags = descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (open("/dev/null", flags) != descriptor) return;
  }
}

// Returns `code`, or complains if not everything that was printed could be written.
int written(const std::string& command, int code) {
  std::cout.flush();
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0 && std::cout.good()) return code;
  return complain(command, fmt::format("standard output: {}",
                                       errno != 0 ? std::strerror(errno) : "cannot be written"));
}

// Handles CLI11's own errors; --help and --version are such "errors" too.
int parse_error(const CLI::App& program, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return written("", program.exit(error));
  const std::vector<CLI::App*> chosen = program.get_subcommands();
  const std::string command = chosen.empty() ? "" : chosen.front()->get_name();
  const std::string help = command.empty() ? "tilewise --help" : "tilewise " + command + " --help";
  return complain(command, fmt::format("{} (see {})", error.what(), help));
}

int run(int argc, char** argv) {
  CLI::App program("Exact attention, tile by tile: FlashAttention for C++.", "tilewise");
  program.set_version_flag("--version", tilewise_version());
  program.footer(
      "Example: tilewise run --q q.npy --k k.npy --v v.npy --causal --out out.npy\n"
      "Exit codes: 0 ok, 1 a check failed, 2 wrong usage or input, or a failed write.");
  program.require_subcommand(1);
  std::string line = "tilewise";
  for (int i = 1; i < argc; ++i) line += " " + std::string(argv[i]);
  const std::vector<Command> commands = {add_run(program),     add_compare(program),
                                         add_explain(program), add_bench(program, line),
                                         add_check(program),   add_info(program)};
  std::string names;
  bool known = argc < 2 || argv[1][0] == '-';
  for (const Command& command : commands) {
    names += (names.empty() ? "" : ", ") + command.flags->command();
    known = known || command.flags->command() == argv[1];
  }
  if (!known) {
    return complain("", fmt::format("command: is \"{}\", must be {}", argv[1], names));
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return parse_error(program, error);
  }
  for (const Command& command : commands) {
    if (!command.flags->chosen()) continue;
    try {
      return written(command.flags->command(), command.run());
    } catch (const std::bad_alloc&) {
      return complain(command.flags->command(), "not enough memory for these tensors");
    } catch (const std::exception& error) {
      return complain(command.flags->command(), error.what());
    }
  }
  return kUsageError;
}

}  // namespace

int run_program(int argc, char** argv) {
  occupy_closed_descriptors();
  io::remove_temporaries_on_signal();
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tilewise: %s\n", error.what());
    return kUsageError;
  }
}

}  // namespace tilewise::cli
