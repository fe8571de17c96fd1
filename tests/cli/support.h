// Runs the program and inspects its results.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/array.h"

namespace tilewise::cli_test {

struct Outcome {
  int code;         // the exit code; 128 + the signal if one ended it
  std::string out;  // stdout
  std::string err;  // stderr
};

// A fresh directory as the program's working directory.
class Cli : public ::testing::Test {
 protected:
  Cli();
  ~Cli() override;

  // Runs tilewise with these arguments, which a shell parses. Redirections such as ">/dev/full"
  // override those that catch the output; variables such as "A=1 B=2" are set for the program.
  Outcome run(const std::string& arguments, const std::string& redirections = "",
              const std::string& variables = "") const;
  // Runs another program in the same way; `program` has its arguments.
  Outcome run_command(const std::string& program, const std::string& redirections = "",
                      const std::string& variables = "") const;

  // Runs `tilewise explain ... --json`, which must succeed, and returns what it prints.
  nlohmann::json explain_json(const std::string& arguments) const;

  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  void write(const std::string& name, const io::Array& array) const;
  io::Array read(const std::string& name) const;

  // Returns every file of the directory with its bytes.
  std::map<std::string, std::string> contents() const;

 private:
  std::filesystem::path directory_;
  std::filesystem::path streams_;  // where stdout and stderr go, outside of directory_
};

// Returns normal random numbers, rounded to the type.
io::Array random_array(io::ElementType type, const std::vector<std::int64_t>& shape,
                       std::uint64_t seed);
io::Array index_array(const std::vector<std::int64_t>& numbers,
                      const std::vector<std::int64_t>& shape);  // int64

}  // namespace tilewise::cli_test
