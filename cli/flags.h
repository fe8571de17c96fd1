// The flags of a subcommand: declared to CLI11, read as text, turned into numbers here, so that
// every complaint names the flag, its value and the limit.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {  // CLI11; included by flags.cc and main.cc only: it compiles slowly
class App;
class Option;
}  // namespace CLI

namespace tilewise::cli {

// A wrong flag, file or combination of them. One line; the program ends with exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Flags {
 public:
  // Of a new subcommand `name` of the program; `summary` is its line in tilewise --help.
  Flags(CLI::App& program, const std::string& name, const std::string& summary);

  // Flags added from here on stand under this title in --help.
  void begin_group(const std::string& title) { group_ = title; }

  // `name` without the dashes. `placeholder` is shown in --help: "FILE".
  void add_value(const std::string& name, const std::string& placeholder, const std::string& help);
  void add_switch(const std::string& name, const std::string& help);
  // A switch that may carry a value: --causal or --causal=top-left.
  void add_switch_with_value(const std::string& name, const std::string& fallback,
                             const std::string& help);
  void set_footer(const std::string& text);  // the end of --help: examples

  bool chosen() const;  // the subcommand was given
  std::string command() const;

  bool given(const std::string& name) const;
  std::string text(const std::string& name) const;  // "" if not given

  // Throw UsageError for anything else than a whole number within the limits, or a finite number.
  std::int64_t integer(const std::string& name, std::int64_t low, std::int64_t high,
                       std::int64_t fallback) const;
  std::uint64_t natural(const std::string& name, std::uint64_t high) const;  // 0 if not given
  double number(const std::string& name, double fallback) const;
  std::vector<std::int64_t> integers(const std::string& name, std::size_t least,
                                     std::size_t most) const;

  // The place of the text in `choices`; 0 if not given.
  std::size_t choice(const std::string& name, const std::vector<std::string>& choices) const;

 private:
  CLI::Option* remember(const std::string& name, CLI::Option* option);

  CLI::App* app_;
  std::string group_ = "Options";
  std::map<std::string, std::string> values_;
  std::map<std::string, CLI::Option*> options_;
};

}  // namespace tilewise::cli
