// The flags of a subcommand. They are declared to CLI11, read as text, and converted to numbers
// here, so that every error message names the flag, its value and the limit.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {  // CLI11 compiles slowly; only flags.cc and main.cc include it
class App;
class Option;
}  // namespace CLI

namespace tilewise::cli {

// A wrong flag or file, or a wrong combination of them. The message is one line; the program ends
// with exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Flags {
 public:
  // Creates the flags of a new subcommand `name` of the program; `summary` is its line in tilewise
  // --help.
  Flags(CLI::App& program, const std::string& name, const std::string& summary);

  // Starts a group: flags that are added after this call appear under this title in --help.
  void begin_group(const std::string& title) { group_ = title; }

  // Adds a flag with a value. `name` is without the dashes; `placeholder` is shown in --help:
  // "FILE".
  void add_value(const std::string& name, const std::string& placeholder, const std::string& help);
  // Adds a flag that may be repeated: text() is the values with commas between them.
  void add_list(const std::string& name, const std::string& placeholder, const std::string& help);
  void add_switch(const std::string& name, const std::string& help);
  // Adds a switch that may carry a value: --causal or --causal=top-left.
  void add_switch_with_value(const std::string& name, const std::string& fallback,
                             const std::string& help);
  void set_footer(const std::string& text);  // sets the end of --help: examples

  bool chosen() const;  // whether the subcommand was given
  std::string command() const;

  bool given(const std::string& name) const;
  std::string text(const std::string& name) const;  // "" if not given

  // These throw UsageError for anything other than a whole number within the limits, or a finite
  // number.
  std::int64_t integer(const std::string& name, std::int64_t low, std::int64_t high,
                       std::int64_t fallback) const;
  std::uint64_t natural(const std::string& name, std::uint64_t high) const;  // 0 if not given
  double number(const std::string& name, double fallback) const;
  std::vector<std::int64_t> integers(const std::string& name, std::size_t least,
                                     std::size_t most) const;

  // Returns the index of the flag's text in `choices`; 0 if not given.
  std::size_t choice(const std::string& name, const std::vector<std::string>& choices) const;

 private:
  CLI::Option* remember(const std::string& name, CLI::Option* option);

  CLI::App* app_;
  std::string group_ = "Options";
  std::map<std::string, std::string> values_;
  std::map<std::string, CLI::Option*> options_;
};

}  // namespace tilewise::cli
