#include "bench_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "format.h"
#include "machine.h"
#include "progress.h"
#include "table.h"

namespace tilewise::cli {
namespace {

using nlohmann::json;
using problem::Operation;
using verify::Data;

struct DataRow {
  std::string name;
  std::vector<double> times;  // sorted
  double seconds = 0;         // the least on a CPU, the median on a GPU
  double ratio = 1;           // to the first row's
};

constexpr std::size_t kLeastRuns = 5;
constexpr double kPatience = 10;  // budgets that a kind may take for that many runs

bool enough(const std::vector<double>& times, double budget) {
  double total = 0;
  for (const double time : times) total += time;
  return !times.empty() && total >= (times.size() < kLeastRuns ? kPatience * budget : budget);
}

// Runs all subjects in turns, so that a clock that changes changes all of them. The run that made a
// subject ready counts only if it alone is enough.
std::vector<DataRow> measure(const std::vector<std::unique_ptr<Subject>>& subjects,
                             const std::vector<Data>& data, double budget, bool quiet) {
  std::vector<DataRow> rows(subjects.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].name = data_name(data[i]);
    rows[i].times = {subjects[i]->first_seconds()};
    if (!enough(rows[i].times, budget)) rows[i].times.clear();
  }
  Progress progress(static_cast<std::int64_t>(rows.size()), quiet);
  std::size_t done = 0;
  while (done < rows.size()) {
    done = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::vector<double>& times = rows[i].times;
      if (enough(times, budget)) {
        ++done;
        continue;
      }
      times.push_back(subjects[i]->runner().run());
      if (enough(times, budget)) progress.step(rows[i].name);
    }
  }
  return rows;
}

void summarise(std::vector<DataRow>& rows, bool median) {
  for (DataRow& row : rows) {
    std::sort(row.times.begin(), row.times.end());
    row.seconds = median ? row.times[row.times.size() / 2] : row.times.front();
    row.ratio = row.seconds / rows.front().seconds;
  }
}

json rows_json(const std::vector<DataRow>& rows) {
  json list = json::array();
  for (const DataRow& row : rows) {
    list.push_back({{"data", row.name},
                    {"seconds", row.times.front()},
                    {"median_seconds", row.times[row.times.size() / 2]},
                    {"runs", row.times.size()},
                    {"ratio", row.ratio}});
  }
  return list;
}

void print_rows(const std::vector<DataRow>& rows, const Executor& executor, const Runner& runner) {
  fmt::print("kernel  {}{}\n", runner.kernel(),
             executor.on_cuda() ? "" : fmt::format(" ({} threads)", executor.threads()));
  fmt::print("time    {}, all data in turns\n\n",
             executor.on_cuda() ? "the median of the runs" : "that of the fastest run");
  Table table({"data", "time", "of normal", "runs"});
  for (const DataRow& row : rows) {
    table.add({row.name, format_seconds(row.seconds), fmt::format("{:.2f}", row.ratio),
               std::to_string(row.times.size())});
  }
  const auto worst = std::max_element(
      rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.ratio < b.ratio; });
  fmt::print("{}\nslowest: {}, {:.2f} times the time of normal data\n", table.text(), worst->name,
             worst->ratio);
}

}  // namespace

Subject::Subject(const Flags& flags, Inputs inputs, const Executor& executor)
    : inputs_(std::move(inputs)) {
  const std::string kernel = flags.text("kernel");
  const bool backward = is_backward(flags);
  add_outputs(Operation::kForward, inputs_);
  runner_ = std::make_unique<Runner>(Operation::kForward, inputs_.problem, backward ? "" : kernel,
                                     executor);
  first_seconds_ = runner_->run();
  if (!backward) return;
  runner_->fetch();
  add_outputs(Operation::kBackward, inputs_);
  runner_ = std::make_unique<Runner>(Operation::kBackward, inputs_.problem, kernel, executor);
  first_seconds_ = runner_->run();
}

bool is_backward(const Flags& flags) { return flags.text("op") == "backward"; }

json setting_json(const Flags& flags, const Executor& executor, const Runner& runner,
                  const std::string& command) {
  json result = {{"op", flags.given("op") ? flags.text("op") : "forward"},
                 {"kernel", runner.kernel()},
                 {"device", executor.on_cuda() ? "cuda" : "cpu"},
                 {"dtype", dtype_text(runner.plan().problem.dtype)},
                 {"shape", flags.text("shape")},
                 {"causal", flags.given("causal")},
                 {"layout", flags.given("layout") ? flags.text("layout") : "bshd"},
                 {"workspace_bytes", runner.plan().workspace_bytes},
                 {"version", tilewise_version()},
                 {"command", command}};
  cuda::DeviceInfo device;
  if (!executor.on_cuda()) {
    result["threads"] = executor.threads();
    result["machine"] = machine_json(plan::this_host());
  } else if (cuda::find_device(runner.plan().problem.device_index, &device) == TILEWISE_OK) {
    result["machine"] = {{"gpu", device.name}};
  }
  return result;
}

int bench_data(const Flags& flags, const Inputs& normal, std::vector<Data> data,
               const Executor& executor, double budget, const std::string& command) {
  data.erase(std::remove(data.begin(), data.end(), Data()), data.end());
  data.insert(data.begin(), Data());
  std::vector<std::unique_ptr<Subject>> subjects;
  for (Inputs& inputs : with_data(normal, data, *executor.get()))
    subjects.push_back(std::make_unique<Subject>(flags, std::move(inputs), executor));
  std::vector<DataRow> rows = measure(subjects, data, budget, flags.given("json"));
  summarise(rows, executor.on_cuda());
  const Runner& runner = subjects.front()->runner();
  if (!flags.given("json")) {
    print_rows(rows, executor, runner);
    return 0;
  }
  json result = setting_json(flags, executor, runner, command);
  result["rows"] = rows_json(rows);
  fmt::print("{}\n", result.dump());
  return 0;
}

}  // namespace tilewise::cli
