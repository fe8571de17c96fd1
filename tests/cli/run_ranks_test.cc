// tilewise run --ranks: the files are those of one process, but for the order of sums.
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "support.h"

namespace tilewise::cli_test {
namespace {

using io::Array;
using io::ElementType;

class RunRanks : public Cli {
 protected:
  void write_sample() const {
    write("q.npy", random_array(ElementType::f32, {2, 33, 4, 16}, 1));
    write("k.npy", random_array(ElementType::f32, {2, 40, 2, 16}, 2));
    write("v.npy", random_array(ElementType::f32, {2, 40, 2, 24}, 3));
    write("do.npy", random_array(ElementType::f32, {2, 33, 4, 24}, 4));
    write("bias.npy", random_array(ElementType::f32, {4, 33, 40}, 5));
    write("sink.npy", random_array(ElementType::f32, {4}, 6));
  }
};

double largest_difference(const Array& a, const Array& b) {
  EXPECT_EQ(a.shape, b.shape);
  const auto* const x = reinterpret_cast<const float*>(a.bytes.data());
  const auto* const y = reinterpret_cast<const float*>(b.bytes.data());
  double largest = 0;
  for (std::size_t i = 0; i < a.bytes.size() / sizeof(float); ++i)
    largest = std::fmax(largest, std::fabs(double{x[i]} - double{y[i]}));
  return largest;
}

constexpr const char* kRankInputs =
    "run --q q.npy --k k.npy --v v.npy --dout do.npy --bias bias.npy --sink sink.npy --causal ";
constexpr const char* kRankOutputs[] = {"out", "lse", "dq", "dk", "dv", "dbias", "dsink"};

std::string output_flags(const std::string& prefix) {
  std::string flags;
  for (const std::string name : kRankOutputs) flags += "--" + name + " " + prefix + name + ".npy ";
  return flags;
}

TEST_F(RunRanks, GiveTheResultsOfOneProcess) {
  write_sample();
  ASSERT_EQ(run(kRankInputs + output_flags("one_")).code, 0);
  for (const char* schedule : {"automatic", "contiguous", "zigzag", "striped"}) {
    const Outcome outcome = run(std::string(kRankInputs) + "--ranks 5 --json --schedule " +
                                schedule + " " + output_flags("ranks_"));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    for (const std::string name : kRankOutputs) {
      EXPECT_LE(largest_difference(read("ranks_" + name + ".npy"), read("one_" + name + ".npy")),
                2e-5)
          << name << ", " << schedule;
    }
    const auto report = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(report["ranks"], 5);
    EXPECT_EQ(report["forward"]["ranks"].size(), 5u);
    EXPECT_GT(report["backward"]["ranks"][0]["sent_bytes"], 0);
  }
}

// A slice list over one dense sequence or packed tokens, and packed documents under a causal mask.
class BalancedRanks : public Cli {
 protected:
  // The tensors of `tokens` tokens, dense with B = 1 or packed.
  void write_tokens(bool dense, std::int64_t tokens) const {
    const auto shape = [&](std::int64_t heads, std::int64_t width) {
      std::vector<std::int64_t> sizes = {tokens, heads, width};
      if (dense) sizes.insert(sizes.begin(), 1);
      return sizes;
    };
    write("q.npy", random_array(ElementType::f32, shape(4, 16), 1));
    write("k.npy", random_array(ElementType::f32, shape(2, 16), 2));
    write("v.npy", random_array(ElementType::f32, shape(2, 24), 3));
    write("do.npy", random_array(ElementType::f32, shape(4, 24), 4));
    write("sink.npy", random_array(ElementType::f32, {4}, 6));
    write("slices.npy",
          index_array({0, 50, 0, 50, 1, 50, 80, 0, 70, 0, 20, 30, 60, 80, 3}, {3, 5}));
    write("starts.npy", index_array({0, 13, 55, 80}, {4}));
  }
  // Runs `program` with the flags for ranks, and compares its files with those of one process.
  void expect_results_of_one_process(const std::string& program, const std::string& ranks,
                                     const std::string& flags,
                                     const std::string& variables = "") const {
    const std::string inputs =
        "run --q q.npy --k k.npy --v v.npy --dout do.npy --sink sink.npy " + flags;
    const auto outputs = [](const std::string& prefix) {
      std::string list;
      for (const char* name : kNames)
        list += std::string(" --") + name + " " + prefix + name + ".npy";
      return list;
    };
    ASSERT_EQ(run(inputs + outputs("one_")).code, 0);
    const Outcome outcome =
        run_command(program + " " + inputs + outputs("ranks_") + " --json " + ranks, "", variables);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    for (const std::string name : kNames) {
      EXPECT_LE(largest_difference(read("ranks_" + name + ".npy"), read("one_" + name + ".npy")),
                2e-5)
          << name << ", " << flags;
    }
    EXPECT_EQ(nlohmann::json::parse(outcome.out)["schedule"], "balanced") << outcome.out;
  }
  static constexpr const char* kNames[] = {"out", "lse", "dq", "dk", "dv", "dsink"};
};

TEST_F(BalancedRanks, GiveTheResultsOfOneProcess) {
  const std::string program = "'" TILEWISE_CLI "'";
  for (const bool dense : {true, false}) {
    write_tokens(dense, 80);
    expect_results_of_one_process(program, "--ranks 4 --schedule balanced", "--slices slices.npy");
  }
  expect_results_of_one_process(program, "--ranks 3 --schedule magi",
                                "--causal --cu-seqlens-q starts.npy");
}

#ifdef TILEWISE_MPI_CLI
TEST_F(BalancedRanks, ProcessesGiveTheResultsOfOne) {
  write_tokens(true, 80);
  expect_results_of_one_process(TILEWISE_MPI_CLI, "--schedule balanced", "--slices slices.npy",
                                TILEWISE_MPI_ENVIRONMENT);
}
#endif

TEST_F(RunRanks, BadFlagsAreNamed) {
  write_sample();
  const std::string inputs = "run --q q.npy --k k.npy --v v.npy --out o.npy ";
  const std::pair<const char*, const char*> cases[] = {
      {"--schedule zigzag", "--schedule: needs --ranks N"},
      {"--ranks 2 --schedule rings",
       "--schedule: is \"rings\", must be automatic, contiguous, zigzag, striped, balanced"},
      {"--ranks 2 --schedule balanced", "q: has B = 2, must have 1 in the balanced schedule"},
      {"--ranks 2 --schedule balanced --bias bias.npy",
       "bias: not supported by the balanced schedule"},
      {"--ranks 0", "--ranks: "},
      {"--ranks 2 --kernel nothing", "kernel: is \"nothing\""}};
  for (const auto& [flags, message] : cases) {
    const Outcome outcome = run(inputs + flags);
    EXPECT_EQ(outcome.code, 2) << flags;
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
    EXPECT_EQ(contents().count("o.npy"), 0u);
  }
}

}  // namespace
}  // namespace tilewise::cli_test
