// Tests compare, explain, bench, check, info and the help: the output for people and for programs.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <tilewise/tilewise.hpp>

#include "support.h"

namespace tilewise::cli_test {
namespace {

using nlohmann::json;

class Commands : public Cli {
 protected:
  json run_json(const std::string& arguments, const std::string& variables = "") const {
    const Outcome outcome = run(arguments + " --json", "", variables);
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.err;
    EXPECT_EQ(outcome.err, "") << arguments;
    return json::parse(outcome.out);
  }
};

TEST_F(Commands, HelpHasAnExample) {
  for (const char* command : {"run", "compare", "explain", "bench", "check", "info"}) {
    const Outcome outcome = run(std::string(command) + " --help");
    EXPECT_EQ(outcome.code, 0) << command;
    EXPECT_NE(outcome.out.find(std::string("tilewise ") + command), std::string::npos) << command;
    EXPECT_NE(outcome.out.find("Example"), std::string::npos) << command;
    EXPECT_NE(outcome.out.find("--json"), std::string::npos) << command;
  }
  EXPECT_EQ(run("--help").code, 0);
  EXPECT_EQ(run("--version").out, std::string(tilewise_version()) + "\n");
}

// Returns commands that print: one of each kind, small, and the help.
std::vector<std::string> printing_commands() {
  return {"info",
          "info --json",
          "info --kernels",
          "info --kernels --json",
          "run --q q.npy --k q.npy --v q.npy --out out.npy",
          "run --q q.npy --k q.npy --v q.npy --out out.npy --json",
          "explain --shape 1,64,64,1,1,16",
          "explain --shape 1,64,64,1,1,16 --ranks 3 --bandwidth 1 --peak 1",
          "explain --shape 1,64,64,1,1,16 --ranks 3 --bandwidth 1 --peak 1 --json",
          "compare --shape 1,16,16,1,1,16 --kernels three_pass",
          "compare --shape 1,16,16,1,1,16 --kernels three_pass --json",
          "bench --shape 1,16,16,1,1,16 --seconds 0.01",
          "bench --shape 1,16,16,1,1,16 --seconds 0 --data all",
          "--help",
          "run --help",
          "--version"};
}

TEST_F(Commands, AFullOrClosedOutputIsAnErrorOfOneLine) {
  write("q.npy", random_array(io::ElementType::f32, {1, 4, 1, 4}, 1));
  for (const std::string& command : printing_commands()) {
    const Outcome right = run(command);
    EXPECT_EQ(right.code, 0) << command << "\n" << right.err;
    for (const char* out : {">/dev/full", ">&-"}) {
      const Outcome outcome = run(command, out);
      EXPECT_EQ(outcome.code, 2) << command << " " << out;
      EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
      EXPECT_EQ(outcome.err.rfind("tilewise", 0), 0u) << outcome.err;
    }
  }
}

// A report that is printed while standard output is closed must not end up in the output file.
TEST_F(Commands, AClosedOutputLeavesTheOutputFilesWhole) {
  write("q.npy", random_array(io::ElementType::f32, {1, 4, 1, 4}, 1));
  const std::string command = "run --q q.npy --k q.npy --v q.npy --out ";
  EXPECT_EQ(run(command + "right.npy").code, 0);
  EXPECT_EQ(run(command + "closed.npy", ">&-").code, 2);
  EXPECT_EQ(run(command + "all_closed.npy", "<&- >&- 2>&-").code, 2);
  const std::map<std::string, std::string> files = contents();
  EXPECT_EQ(files.at("closed.npy"), files.at("right.npy"));
  EXPECT_EQ(files.at("all_closed.npy"), files.at("right.npy"));
}

TEST_F(Commands, InfoShowsTheThreadsOfTheDefaultPool) {
  const json given = run_json("info", "TILEWISE_NUM_THREADS=3 OMP_NUM_THREADS=2")["threads"];
  EXPECT_EQ(given, json({{"count", 3}, {"variable", "TILEWISE_NUM_THREADS"}}));
  const json openmp = run_json("info", "TILEWISE_NUM_THREADS= OMP_NUM_THREADS=2,1")["threads"];
  EXPECT_EQ(openmp, json({{"count", 2}, {"variable", "OMP_NUM_THREADS"}}));
  write("q.npy", random_array(io::ElementType::f32, {1, 4, 1, 4}, 1));
  const std::string forward = "run --q q.npy --k q.npy --v q.npy --out out.npy";
  EXPECT_EQ(run_json(forward, "TILEWISE_NUM_THREADS=3")["threads"], 3);
  EXPECT_EQ(run_json(forward + " --threads 2", "TILEWISE_NUM_THREADS=x")["threads"], 2);
  const Outcome wrong = run(forward, "", "TILEWISE_NUM_THREADS=x");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.err, "tilewise run: TILEWISE_NUM_THREADS: is \"x\", must be 0 (all) to 4096\n");
  EXPECT_NE(run("info", "", "TILEWISE_NUM_THREADS=x").out.find("must be 0 (all) to 4096"),
            std::string::npos);
}

TEST_F(Commands, InfoListsTheRegistry) {
  const json info = run_json("info");
  EXPECT_EQ(info["version"], tilewise_version());
  for (const Operation operation : {Operation::kForward, Operation::kBackward}) {
    std::vector<std::string> names;
    const char* const key = operation == Operation::kForward ? "forward" : "backward";
    for (const json& kernel : info["kernels"][key]) names.push_back(kernel["name"]);
    EXPECT_EQ(names, kernel_names(operation));
  }
  for (std::int32_t i = 0; i < tilewise_cpu_target_count(); ++i) {
    const json& target = info["targets"][static_cast<std::size_t>(i)];
    EXPECT_EQ(target["name"], tilewise_cpu_target_name(i));
    EXPECT_EQ(target["available"].get<bool>(), tilewise_cpu_target_available(i) != 0);
  }
  EXPECT_FALSE(info["machine"]["compiler"].get<std::string>().empty());
  EXPECT_NE(run("info").out.find("three_pass"), std::string::npos);
}

TEST_F(Commands, InfoGivesAReasonForEveryTile) {
  int rows = 0;
  for (const json& row : run_json("info --kernels")) {
    EXPECT_GT(row["q_tile"].get<int>(), 0);
    EXPECT_GT(row["k_tile"].get<int>(), 0);
    EXPECT_FALSE(row["reason"].get<std::string>().empty());
    ++rows;
  }
  EXPECT_GE(rows, 10);
  EXPECT_NE(run("info --kernels").out.find("cuda_sm80"), std::string::npos);
}

TEST_F(Commands, CompareHasARowForEveryKernelOfTheCpu) {
  for (const char* op : {"forward", "backward"}) {
    const json result = run_json(std::string("compare --shape 1,100,130,4,2,32,16 --causal --op ") +
                                 op + " --sram 16384 --plot p.svg");
    for (const json& row : result["rows"]) {
      if (row.contains("skipped")) continue;
      const std::string name = row["name"];
      EXPECT_GT(row["seconds"].get<double>(), 0) << name;
      EXPECT_GE(row["workspace_bytes"].get<double>(), 0) << name;
      EXPECT_LT(row["max_abs_error"].get<double>(), 1e-5) << name;
      EXPECT_LE(row["rms_error"].get<double>(), row["max_abs_error"].get<double>()) << name;
      EXPECT_EQ(row["traffic_bytes"].get<double>(), row["predicted_traffic_bytes"].get<double>())
          << op << " " << name;
    }
    const bool forward = std::string(op) == "forward";
    std::vector<std::string> names =
        kernel_names(forward ? Operation::kForward : Operation::kBackward);
    std::erase_if(names, [](const std::string& name) { return name.rfind("cuda_", 0) == 0; });
    EXPECT_EQ(result["rows"].size(), names.size());
  }
  const std::string svg = contents().at("p.svg");
  EXPECT_EQ(svg.rfind("<svg xmlns", 0), 0u);
  EXPECT_NE(svg.find("flash2"), std::string::npos);
}

TEST_F(Commands, CompareTakesTheKernelsThatAreNamed) {
  const json result = run_json("compare --shape 1,20,30,2,2,16 --kernels three_pass,flash1,flash2");
  ASSERT_EQ(result["rows"].size(), 3u);
  EXPECT_EQ(result["rows"][0]["name"], "three_pass");
  EXPECT_EQ(result["rows"][2]["name"], "flash2");
  EXPECT_FALSE(result["rows"][0].contains("skipped"));
}

TEST_F(Commands, CompareSamplesRowsOfALargeProblem) {
  const json result = run_json("compare --shape 1,400,4200,1,1,64 --dtype fp64");
  EXPECT_NE(result["oracle"].get<std::string>().find("sample of 64"), std::string::npos);
  for (const json& row : result["rows"]) {
    if (row.contains("skipped")) continue;
    EXPECT_LT(row["max_abs_error"].get<double>(), 1e-13) << row.dump();
    EXPECT_GT(row["rms_error"].get<double>(), 0) << row.dump();
  }
}

// The example of the textbooks: N = 4096, D = 128, one head, 2 bytes per element.
TEST_F(Commands, ExplainReproducesStandardAttention) {
  constexpr double kMiB = 1024 * 1024;
  const json result = run_json("explain --shape 1,4096,4096,1,1,128 --dtype fp16 --threads 1");
  std::map<std::string, json> tensors;
  for (const json& row : result["rows"]) {
    if (row["name"] != "three_pass") continue;
    for (const json& tensor : row["tensors"]) tensors[tensor["name"]] = tensor;
  }
  for (const char* name : {"q", "k", "v"}) {
    EXPECT_EQ(tensors.at(name)["read_bytes"].get<double>(), kMiB) << name;
  }
  for (const char* name : {"scores", "probs"}) {
    EXPECT_EQ(tensors.at(name)["read_bytes"].get<double>(), 32 * kMiB) << name;
    EXPECT_EQ(tensors.at(name)["written_bytes"].get<double>(), 32 * kMiB) << name;
  }
  EXPECT_EQ(tensors.at("out")["written_bytes"].get<double>(), kMiB);
  EXPECT_GT(result["peak_gflops"].get<double>(), 0);
  EXPECT_DOUBLE_EQ(
      result["ridge_flops_per_byte"].get<double>(),
      result["peak_gflops"].get<double>() / result["read_gbytes_per_second"].get<double>());
}

TEST_F(Commands, BenchCountsUsefulFlops) {
  const std::string shape = "bench --shape 2,64,96,4,2,32,16 --seconds 0 --threads 1 ";
  const double products = 2.0 * 2 * 4 * (32 + 16);
  double causal_pairs = 0;
  for (int i = 0; i < 64; ++i) causal_pairs += i + 33;
  const struct {
    const char* flags;
    double flops;
  } cases[] = {{"--op forward", products * 64 * 96},
               {"--op forward --causal", products * causal_pairs},
               {"--op backward --dtype bf16", 2.5 * products * 64 * 96}};
  for (const auto& [flags, flops] : cases) {
    const json result = run_json(shape + flags);
    const double seconds = result["seconds"];
    EXPECT_NEAR(result["gflops"].get<double>() * seconds * 1e9, flops, flops * 1e-9) << flags;
    EXPECT_NEAR(result["fraction_of_peak"].get<double>(),
                result["gflops"].get<double>() / result["peak_gflops"].get<double>(), 1e-12);
    EXPECT_GT(result["peak_gflops"].get<double>(), 0);
    EXPECT_GT(result["read_gbytes_per_second"].get<double>(), 0);
    EXPECT_FALSE(result["kernel"].get<std::string>().empty());
    EXPECT_NE(result["command"].get<std::string>().find("bench --shape"), std::string::npos);
    EXPECT_FALSE(result["machine"]["cpu"].get<std::string>().empty());
  }
}

TEST_F(Commands, BenchDecodeReportsTheReadRate) {
  const json result = run_json("bench --op decode --shape 1,1,4096,8,2,64 --seconds 0");
  const double bytes = 4096.0 * 2 * (64 + 64) * 4;
  const double rate = bytes / result["seconds"].get<double>() * 1e-9;
  EXPECT_NEAR(result["kv_gbytes_per_second"].get<double>(), rate, rate * 1e-9);
}

TEST_F(Commands, BenchNamesItsData) {
  const std::string command = "bench --shape 1,32,48,2,1,16 --seconds 0 --threads 1 ";
  EXPECT_EQ(run_json(command)["data"], "normal");
  EXPECT_EQ(run_json(command + "--data scaled:3+nan-k")["data"], "scaled:3+nan-k");
  EXPECT_NE(run(command + "--data huge-v").out.find("data       huge-v\n"), std::string::npos);
}

TEST_F(Commands, BenchComparesSeveralDataWithNormalData) {
  const std::string command = "bench --shape 1,32,48,2,1,16 --seconds 0.001 --threads 1 ";
  for (const char* op : {"forward", "backward"}) {
    const json result = run_json(command + "--data nan-k --data rising,nan-k --op " + op);
    ASSERT_EQ(result["rows"].size(), 3u) << op;  // each once, normal first
    EXPECT_EQ(result["rows"][0]["data"], "normal");
    EXPECT_EQ(result["rows"][1]["data"], "nan-k");
    EXPECT_EQ(result["rows"][2]["data"], "rising");
    for (const json& row : result["rows"]) {
      EXPECT_GT(row["runs"].get<int>(), 0);
      EXPECT_LE(row["seconds"].get<double>(), row["median_seconds"].get<double>());
      EXPECT_DOUBLE_EQ(row["ratio"].get<double>(),
                       row["seconds"].get<double>() / result["rows"][0]["seconds"].get<double>());
    }
    EXPECT_EQ(result["op"], op);
    EXPECT_FALSE(result["machine"]["cpu"].get<std::string>().empty());
    EXPECT_NE(result["command"].get<std::string>().find("--data nan-k"), std::string::npos);
  }
  const std::string table = run(command + "--data nan-k,rising").out;
  for (const char* word : {"normal", "nan-k", "rising", "of normal", "slowest"})
    EXPECT_NE(table.find(word), std::string::npos) << word;
}

TEST_F(Commands, BenchMeasuresAllDataThatTheProblemCanHave) {
  const std::string command = "bench --data all --seconds 0 --threads 1 --dtype fp16 --shape ";
  const auto names = [&](const std::string& flags) {
    std::set<std::string> found;
    const json result = run_json(command + flags);
    for (const json& row : result["rows"]) found.insert(row["data"].get<std::string>());
    return found;
  };
  const std::set<std::string> forward = names("1,16,24,1,1,8");
  EXPECT_EQ(forward.count("nan-v:0.01"), 1u);
  EXPECT_EQ(forward.count("nan-dout") + forward.count("bias-columns"), 0u);
  EXPECT_EQ(names("1,16,24,1,1,8 --op backward").count("nan-dout"), 1u);
  EXPECT_EQ(names("1,16,24,1,1,8 --random-bias").count("bias-columns"), 1u);
  EXPECT_EQ(names("1,1,64,2,1,8 --op decode").size(), forward.size());
}

TEST_F(Commands, CheckPassesOnThisMachine) {
  const json result = run_json("check --kernel three_pass --seed 7");
  EXPECT_TRUE(result["passed"].get<bool>());
  ASSERT_EQ(result["rows"].size(), 2u);
  for (const json& row : result["rows"]) {
    EXPECT_GT(row["passed"].get<int>(), 50);
    EXPECT_EQ(row["failed"].get<int>(), 0);
    EXPECT_GT(row["worst_ratio"].get<double>(), 0);
    EXPECT_LE(row["worst_ratio"].get<double>(), 1);
  }
}

}  // namespace
}  // namespace tilewise::cli_test
