// Tests explain --ranks: the simulation of distributed schedules, and its bad input.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "support.h"

namespace tilewise::cli_test {
namespace {

using nlohmann::json;

class Simulation : public Cli {
 protected:
  void expect_refusal(const std::string& arguments, const std::vector<std::string>& words) const {
    const Outcome outcome = run("explain " + arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    for (const std::string& word : words) {
      EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err << " lacks " << word;
    }
  }
};

// Efficiency, bytes and time of a causal mask with a fast link, by hand.
TEST_F(Simulation, SchedulesOfACausalMaskHaveTheirKnownFigures) {
  const std::string command =
      "--shape 1,8192,8192,8,2,64 --dtype bf16 --causal --ranks 4 --bandwidth 1e6 --latency 0 "
      "--peak 1";
  const json result = explain_json(command);
  const double area = 8192.0 * 8193 / 2;
  EXPECT_EQ(result["area"].get<double>(), area);
  const double ideal = area * 8 * 4 * 64 / 4 / 1e12;
  EXPECT_NEAR(result["ideal_seconds"].get<double>(), ideal, 1e-9 * ideal);
  ASSERT_EQ(result["schedules"].size(), 4u);
  const double shard_bytes = 2048.0 * 2 * (64 + 64) * 2;
  for (const json& schedule : result["schedules"]) {
    const std::string name = schedule["name"];
    const double efficiency = schedule["efficiency"];
    EXPECT_GT(efficiency, name == "contiguous" ? 0.57 : 0.95) << name;
    EXPECT_LE(efficiency, name == "contiguous" ? 0.572 : 1) << name;
    EXPECT_LE(schedule["most_received_bytes"].get<double>(), 3 * shard_bytes) << name;
    if (name == "zigzag" || name == "striped") {
      EXPECT_EQ(schedule["mean_received_bytes"].get<double>(), 3 * shard_bytes) << name;
    } else if (name == "contiguous") {
      EXPECT_EQ(schedule["mean_received_bytes"].get<double>(), 1.5 * shard_bytes);
    }
  }
}

// The lists of ranks and steps add up to the whole.
TEST_F(Simulation, TheListOfOneScheduleAddsUp) {
  for (const char* schedule : {"contiguous", "zigzag", "striped", "balanced"}) {
    const json result = explain_json(
        "--shape 2,500,500,4,4,32 --window 100,20 --ranks 3 --bandwidth 2 "
        "--peak 0.5 --op backward --schedule " +
        std::string(schedule));
    ASSERT_EQ(result["schedules"].size(), 1u);
    const json& only = result["schedules"][0];
    EXPECT_EQ(only["name"], schedule);
    ASSERT_EQ(only["ranks"].size(), 3u);
    std::int64_t area = 0;
    std::int64_t queries = 0;
    double received = 0;
    double sent = 0;
    double last = 0;
    for (const json& rank : only["ranks"]) {
      std::int64_t steps = 0;
      for (const json& step : rank["steps"]) steps += step["area"].get<std::int64_t>();
      EXPECT_EQ(steps, rank["area"].get<std::int64_t>());
      area += steps;
      queries += rank["queries"].get<std::int64_t>();
      received += rank["received_bytes"].get<double>();
      sent += rank["sent_bytes"].get<double>();
      last = std::max(last, rank["end_seconds"].get<double>());
    }
    EXPECT_EQ(area, result["area"].get<std::int64_t>());
    EXPECT_EQ(queries, 1000);
    EXPECT_EQ(received, sent);
    EXPECT_EQ(last, only["predicted_seconds"].get<double>());
  }
}

TEST_F(Simulation, MasksComeFromFiles) {
  // Two documents; the second sees the first 10 keys of the first as well, and one slice twice.
  write("slices.npy", index_array({0,  60,  0, 60, 1, 60, 100, 60, 100, 1, 60, 100, 0, 10, 0,  //
                                   60, 100, 0, 10, 0},
                                  {4, 5}));
  const json slices =
      explain_json("--shape 1,100,100,1,1,8 --slices slices.npy --ranks 2 --bandwidth 1 --peak 1");
  EXPECT_EQ(slices["area"].get<std::int64_t>(), 60 * 61 / 2 + 40 * 41 / 2 + 400);
  write("heads.npy", index_array({0, 10, 0, 10, 0, 0, 0, 10, 0, 5, 0, -1}, {2, 6}));
  const json heads =
      explain_json("--shape 1,10,10,3,1,8 --slices heads.npy --ranks 2 --bandwidth 1 --peak 1");
  EXPECT_EQ(heads["area"].get<std::int64_t>(), 100 + 2 * 50);
  write("starts.npy", index_array({0, 30, 30, 100}, {4}));
  const json documents = explain_json(
      "--shape 1,100,100,1,1,8 --causal --cu-seqlens-q starts.npy --ranks 5 --bandwidth 1 --peak "
      "1");
  EXPECT_EQ(documents["area"].get<std::int64_t>(), 30 * 31 / 2 + 70 * 71 / 2);
  const json batch = explain_json("--shape 7,30,40,1,1,8 --ranks 5 --bandwidth 1 --peak 1");
  EXPECT_EQ(batch["area"].get<std::int64_t>(), 7 * 30 * 40);
  const json empty = explain_json("--shape 1,0,0,1,1,8 --ranks 3 --bandwidth 1 --peak 1");
  EXPECT_EQ(empty["area"].get<std::int64_t>(), 0);
  for (const json& schedule : empty["schedules"]) EXPECT_EQ(schedule["efficiency"], 1.0);
}

TEST_F(Simulation, ThousandsOfRanksAreSimulated) {
  const json result = explain_json(
      "--shape 1,4194304,4194304,8,8,128 --causal --ranks 2000 --bandwidth 50 --peak 600 "
      "--schedule magi");
  EXPECT_LE(result["schedules"][0]["imbalance"].get<double>(), 1.02);
}

TEST_F(Simulation, ThePlotHasAPanelForEachSchedule) {
  const std::string command =
      "explain --shape 1,512,512,1,1,8 --ranks 3 --bandwidth 0.1 --peak 1 --plot p.svg";
  const Outcome outcome = run(command);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("plot: p.svg"), std::string::npos);
  const std::string svg = contents().at("p.svg");
  for (const char* word : {"<svg", "contiguous", "zigzag", "striped", "balanced", "rank 2",
                           "step 1: receives", "computes for", "</svg>"}) {
    EXPECT_NE(svg.find(word), std::string::npos) << word;
  }
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST_F(Simulation, BadInputIsRefusedByName) {
  const std::string good = "--shape 1,64,64,2,2,8 --peak 1 ";
  expect_refusal(good + "--ranks 2", {"--bandwidth", "missing"});
  expect_refusal("--ranks 2 --bandwidth 1", {"--shape", "missing"});
  expect_refusal(good + "--ranks 0 --bandwidth 1", {"--ranks", "0", "1 to 65536"});
  expect_refusal(good + "--ranks 2 --bandwidth 0", {"--bandwidth", "\"0\"", "above 0"});
  expect_refusal(good + "--ranks 2 --bandwidth 1 --latency -1", {"--latency", "-1"});
  expect_refusal("--shape 1,64,64,2,2,8 --peak -2 --ranks 2 --bandwidth 1", {"--peak", "-2"});
  expect_refusal(good + "--ranks 2 --bandwidth 1 --schedule spiral",
                 {"--schedule", "spiral", "zigzag"});
  expect_refusal(good + "--ranks 2 --bandwidth 1 --chunk 0", {"--chunk", "0"});
  expect_refusal(good + "--ranks 2 --bandwidth 1 --plot nowhere/p.svg", {"nowhere/p.svg"});
  expect_refusal("--shape 1,64,64,2,2,8 --bandwidth 1", {"--bandwidth", "--ranks"});
  expect_refusal("--shape 1,64,64,2,2,8 --chunk 4 --plot p.svg", {"--chunk", "--ranks"});
  write("wide.npy", index_array({0, 1, 2, 3}, {1, 4}));
  write("outside.npy", index_array({0, 64, 0, 65, 0}, {1, 5}));
  write("flat.npy", index_array({0, 32}, {2}));
  write("floats.npy", random_array(io::ElementType::f32, {1, 5}, 1));
  const std::string ranks = good + "--ranks 2 --bandwidth 1 ";
  expect_refusal(ranks + "--slices wide.npy", {"--slices", "4 columns"});
  expect_refusal(ranks + "--slices outside.npy", {"slices[0]", "0..65", "0..64"});
  expect_refusal(ranks + "--slices flat.npy", {"--slices", "(2,)", "2 dimensions"});
  expect_refusal(ranks + "--slices floats.npy", {"--slices", "fp32", "int64"});
  expect_refusal(ranks + "--slices missing.npy", {"missing.npy"});
  expect_refusal(ranks + "--slices outside.npy --causal", {"--slices", "--causal"});
  expect_refusal(ranks + "--cu-seqlens-q flat.npy", {"--cu-seqlens-q", "32", "64"});
  expect_refusal(ranks + "--cu-seqlens-k flat.npy", {"--cu-seqlens-k", "--cu-seqlens-q"});
}

}  // namespace
}  // namespace tilewise::cli_test
