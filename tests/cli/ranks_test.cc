// tilewise run --ranks: the files are those of one process, but for the order of sums.
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "support.h"

namespace tilewise::cli_test {
namespace {

using io::Array;
using io::ElementType;

class Ranks : public Cli {
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

TEST_F(Ranks, GiveTheResultsOfOneProcess) {
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

TEST_F(Ranks, BadFlagsAreNamed) {
  write_sample();
  const std::string inputs = "run --q q.npy --k k.npy --v v.npy --out o.npy ";
  const std::pair<const char*, const char*> cases[] = {
      {"--schedule zigzag", "--schedule: needs --ranks N"},
      {"--ranks 2 --schedule ring", "--schedule: is \"ring\", must be automatic, contiguous"},
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
