// The part of tilewise bench that compares data: the time on each kind relative to random normal
// data.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "execution.h"
#include "random_inputs.h"

namespace tilewise::cli {

// Inputs of one kind of data, and a kernel that is ready to run on them.
class Subject {
 public:
  // Plans the operation, with the forward pass before a backward one, and runs it once. Throws
  // UsageError with the library's message.
  Subject(const Flags& flags, Inputs inputs, const Executor& executor);
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;

  Runner& runner() const { return *runner_; }
  double first_seconds() const { return first_seconds_; }

 private:
  Inputs inputs_;
  std::unique_ptr<Runner> runner_;
  double first_seconds_ = 0;
};

bool is_backward(const Flags& flags);

// Returns the fields that every report of bench has: what ran, and on what.
nlohmann::json setting_json(const Flags& flags, const Executor& executor, const Runner& runner,
                            const std::string& command);

// Measures the kernel on each of the data, in turns, and prints a table or JSON. Each is run for
// `budget` seconds and at least five times, but not longer than ten times that for more than a run.
// Normal data is measured too, whether named or not.
int bench_data(const Flags& flags, const Inputs& normal, std::vector<verify::Data> data,
               const Executor& executor, double budget, const std::string& command);

}  // namespace tilewise::cli
