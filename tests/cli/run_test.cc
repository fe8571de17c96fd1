// tilewise run writes exactly the bits that the library computes.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <tilewise/tilewise.hpp>
#include <utility>

#include "io/file_error.h"
#include "io/npz.h"
#include "io/safetensors.h"
#include "support.h"

namespace tilewise::cli_test {
namespace {

using io::Array;
using io::ElementType;
using nlohmann::json;

std::string bytes_of(const Array& array) {
  return {reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size()};
}

Tensor view(const Array& array, std::int32_t dtype) {
  return tensor(const_cast<std::byte*>(array.bytes.data()), dtype,
                std::span<const std::int64_t>(array.shape));
}

// A GQA problem with D != Dv, and the library's own result for it.
struct Sample {
  Array q = random_array(ElementType::f32, {2, 33, 4, 16}, 1);
  Array k = random_array(ElementType::f32, {2, 40, 2, 16}, 2);
  Array v = random_array(ElementType::f32, {2, 40, 2, 24}, 3);
  Array dout = random_array(ElementType::f32, {2, 33, 4, 24}, 4);
  Array out = io::make_array(ElementType::f32, dout.shape);
  Array lse = io::make_array(ElementType::f32, std::vector<std::int64_t>{2, 4, 33});
  Array dq = io::make_array(ElementType::f32, q.shape);
  Array dk = io::make_array(ElementType::f32, k.shape);
  Array dv = io::make_array(ElementType::f32, v.shape);
  Problem problem;

  Sample() {
    problem.q = view(q, TILEWISE_FP32);
    problem.k = view(k, TILEWISE_FP32);
    problem.v = view(v, TILEWISE_FP32);
    problem.out = view(out, TILEWISE_FP32);
    problem.lse = view(lse, TILEWISE_FP32);
    problem.dout = view(dout, TILEWISE_FP32);
    problem.dq = view(dq, TILEWISE_FP32);
    problem.dk = view(dk, TILEWISE_FP32);
    problem.dv = view(dv, TILEWISE_FP32);
  }
  void compute() {
    forward(problem);
    backward(problem);
  }
};

class Run : public Cli {
 protected:
  void write_sample(const Sample& sample) const {
    write("q.npy", sample.q);
    write("k.npy", sample.k);
    write("v.npy", sample.v);
    write("do.npy", sample.dout);
  }
};

TEST_F(Run, ForwardAndBackwardAreTheLibrarysBits) {
  Sample sample;
  sample.problem.causal = 1;
  sample.problem.window_left = 20;
  sample.problem.softcap = 3;
  sample.problem.softmax_scale = 0.3;
  sample.compute();
  write_sample(sample);
  const Outcome outcome =
      run("run --q q.npy --k k.npy --v v.npy --dout do.npy --causal --window 20,-1 --softcap 3 "
          "--scale 0.3 --out o.npy --lse l.npy --dq dq.npy --dk dk.npy --dv dv.npy --threads 1");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(bytes_of(read("o.npy")), bytes_of(sample.out));
  EXPECT_EQ(bytes_of(read("l.npy")), bytes_of(sample.lse));
  EXPECT_EQ(bytes_of(read("dq.npy")), bytes_of(sample.dq));
  EXPECT_EQ(bytes_of(read("dk.npy")), bytes_of(sample.dk));
  EXPECT_EQ(bytes_of(read("dv.npy")), bytes_of(sample.dv));
  EXPECT_EQ(read("o.npy").shape, sample.out.shape);
  EXPECT_EQ(read("l.npy").shape, sample.lse.shape);
}

TEST_F(Run, TopLeftIsNotBottomRight) {
  Sample sample;
  sample.problem.causal = 1;
  sample.problem.alignment = TILEWISE_TOP_LEFT;
  sample.compute();
  write_sample(sample);
  for (const char* flags : {"--causal=top-left", "--causal --align top-left"}) {
    const Outcome outcome =
        run(std::string("run --q q.npy --k k.npy --v v.npy --out o.npy ") + flags);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(bytes_of(read("o.npy")), bytes_of(sample.out)) << flags;
  }
  ASSERT_EQ(run("run --q q.npy --k k.npy --v v.npy --out o.npy --causal=bottom-right").code, 0);
  EXPECT_NE(bytes_of(read("o.npy")), bytes_of(sample.out));
}

TEST_F(Run, SafetensorsAreReadAndWritten) {
  Sample sample;
  sample.compute();
  io::write_safetensors(
      path("in.safetensors"),
      {{{"q", sample.q}, {"k", sample.k}, {"v", sample.v}, {"dout", sample.dout}}, {}});
  const Outcome outcome = run("run --in in.safetensors --save out.safetensors --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const io::TensorFile file = io::read_safetensors(path("out.safetensors"));
  ASSERT_EQ(file.tensors.size(), 5u);
  const std::pair<const char*, const Array&> expected[] = {{"out", sample.out},
                                                           {"lse", sample.lse},
                                                           {"dq", sample.dq},
                                                           {"dk", sample.dk},
                                                           {"dv", sample.dv}};
  for (const auto& [name, array] : expected) {
    ASSERT_NE(file.find(name), nullptr) << name;
    EXPECT_EQ(bytes_of(*file.find(name)), bytes_of(array)) << name;
  }
  const json report = json::parse(outcome.out);
  EXPECT_GT(report["forward"]["seconds"].get<double>(), 0);
  EXPECT_FALSE(report["backward"]["kernel"].get<std::string>().empty());
}

TEST_F(Run, CastsOnLoadAndWritesTheSameDtype) {
  Sample sample;
  write_sample(sample);
  ASSERT_EQ(run("run --q q.npy --k k.npy --v v.npy --out o.npy --dtype bf16").code, 0);
  const Array out = read("o.npy");
  EXPECT_EQ(out.type, ElementType::bf16);
  const Array rounded[] = {random_array(ElementType::bf16, sample.q.shape, 1),
                           random_array(ElementType::bf16, sample.k.shape, 2),
                           random_array(ElementType::bf16, sample.v.shape, 3)};
  Array expected = io::make_array(ElementType::bf16, sample.out.shape);
  Problem problem;
  problem.q = view(rounded[0], TILEWISE_BF16);
  problem.k = view(rounded[1], TILEWISE_BF16);
  problem.v = view(rounded[2], TILEWISE_BF16);
  problem.out = view(expected, TILEWISE_BF16);
  forward(problem);
  EXPECT_EQ(bytes_of(out), bytes_of(expected));
}

TEST_F(Run, PackedKeysTakeTheQueriesSequences) {
  const Array q = random_array(ElementType::f64, {30, 2, 8}, 1);
  const Array k = random_array(ElementType::f64, {30, 1, 8}, 2);
  const Array v = random_array(ElementType::f64, {30, 1, 8}, 3);
  const Array starts = index_array({0, 7, 7, 30}, {4});
  write("q.npy", q);
  write("k.npy", k);
  write("v.npy", v);
  write("s.npy", starts);
  const Outcome outcome = run(
      "run --layout thd --q q.npy --k k.npy --v v.npy --cu-seqlens-q s.npy --causal --out o.npy");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  Array out = io::make_array(ElementType::f64, q.shape);
  Problem problem;
  problem.q = view(q, TILEWISE_FP64);
  problem.k = view(k, TILEWISE_FP64);
  problem.v = view(v, TILEWISE_FP64);
  problem.out = view(out, TILEWISE_FP64);
  problem.cu_seqlens_q = problem.cu_seqlens_k = view(starts, TILEWISE_INT64);
  problem.causal = 1;
  forward(problem);
  EXPECT_EQ(bytes_of(read("o.npy")), bytes_of(out));
}

TEST_F(Run, EveryScoreInputArrives) {
  Sample sample;
  const Array bias = random_array(ElementType::f32, {4, 33, 40}, 5);
  const Array sink = random_array(ElementType::f32, {4}, 6);
  const Array slopes = random_array(ElementType::f32, {4}, 7);
  const Array dlse = random_array(ElementType::f32, {2, 4, 33}, 8);
  Array mask = io::make_array(ElementType::boolean, std::vector<std::int64_t>{33, 40});
  for (std::size_t i = 0; i < mask.writable.size(); ++i) {
    mask.writable[i] = i % 3 == 0 ? std::byte{0} : std::byte{1};
  }
  const Array used = index_array({39, 12}, {2});
  const Array used_q = index_array({33, 20}, {2});
  const Array dbias = io::make_array(ElementType::f32, bias.shape);
  const Array dsink = io::make_array(ElementType::f32, sink.shape);
  sample.problem.bias = view(bias, TILEWISE_FP32);
  sample.problem.sink = view(sink, TILEWISE_FP32);
  sample.problem.alibi_slopes = view(slopes, TILEWISE_FP32);
  sample.problem.dlse = view(dlse, TILEWISE_FP32);
  sample.problem.mask = view(mask, TILEWISE_BOOL);
  sample.problem.seqused_k = view(used, TILEWISE_INT64);
  sample.problem.seqused_q = view(used_q, TILEWISE_INT64);
  sample.problem.dbias = view(dbias, TILEWISE_FP32);
  sample.problem.dsink = view(dsink, TILEWISE_FP32);
  sample.problem.dropout_p = 0.25;
  sample.problem.dropout_seed = 99;
  sample.problem.dropout_offset = 7;
  sample.compute();
  write_sample(sample);
  write("bias.npy", bias);
  write("sink.npy", sink);
  write("alibi.npy", slopes);
  write("dlse.npy", dlse);
  write("mask.npy", mask);
  write("used.npy", used);
  write("used_q.npy", used_q);
  const Outcome outcome =
      run("run --q q.npy --k k.npy --v v.npy --dout do.npy --bias bias.npy --sink sink.npy "
          "--alibi alibi.npy --dlse dlse.npy --mask mask.npy --seqused-k used.npy --seqused-q "
          "used_q.npy "
          "--dropout 0.25 --seed 99 --offset 7 --deterministic --out o.npy --dbias db.npy --dsink "
          "ds.npy "
          "--dk dk.npy");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(bytes_of(read("o.npy")), bytes_of(sample.out));
  EXPECT_EQ(bytes_of(read("dk.npy")), bytes_of(sample.dk));
  EXPECT_EQ(bytes_of(read("db.npy")), bytes_of(dbias));
  EXPECT_EQ(bytes_of(read("ds.npy")), bytes_of(dsink));
}

// Keys of the sample, of which the sequences use 40 and 23, are scattered over 10 pages of 8.
TEST_F(Run, PagesOfACacheGiveTheBitsOfTheSameKeysInRows) {
  Sample sample;
  const Array used = index_array({40, 23}, {2});
  const Array table = index_array({7, 2, 0, 9, 4, 1, 8, 3, -1, 99}, {2, 5});
  sample.problem.seqused_k = view(used, TILEWISE_INT64);
  forward(sample.problem);
  const std::int64_t pages[] = {7, 2, 0, 9, 4, 1, 8, 3};
  Array k = random_array(ElementType::f32, {10, 8, 2, 16}, 8);
  Array v = random_array(ElementType::f32, {10, 8, 2, 24}, 9);
  for (std::size_t page = 0; page < std::size(pages); ++page) {
    for (const auto& [from, to] : {std::pair(&sample.k, &k), std::pair(&sample.v, &v)}) {
      const std::size_t bytes = to->bytes.size() / 10;
      const std::size_t target = static_cast<std::size_t>(pages[page]) * bytes;
      std::memcpy(to->writable.data() + target, from->bytes.data() + page * bytes, bytes);
    }
  }
  write("q.npy", sample.q);
  write("k.npy", k);
  write("v.npy", v);
  write("t.npy", table);
  write("u.npy", used);
  const std::string command = "run --q q.npy --k k.npy --v v.npy --page-table t.npy ";
  ASSERT_EQ(run(command + "--seqused-k u.npy --out o.npy").code, 0);
  EXPECT_EQ(bytes_of(read("o.npy")), bytes_of(sample.out));
  const Outcome refused = run(command + "--out o.npy");  // all pages are in use
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("page_table[1][3]: is -1"), std::string::npos) << refused.err;
}

TEST_F(Run, SlicesAreTheWholeMask) {
  Sample sample;
  const Array slices = index_array({0, 20, 0, 40, 1, -1, 20, 33, 5, 30, 0, 2}, {2, 6});
  sample.problem.slices = view(slices, TILEWISE_INT64);
  sample.compute();
  write_sample(sample);
  write("s.npy", slices);
  ASSERT_EQ(run("run --q q.npy --k k.npy --v v.npy --slices s.npy --out o.npy").code, 0);
  EXPECT_EQ(bytes_of(read("o.npy")), bytes_of(sample.out));
}

TEST_F(Run, NpzFilesAreReadAndWritten) {
  Sample sample;
  sample.compute();
  const io::TensorFile inputs = {{{"q", sample.q}, {"k", sample.k}, {"v", sample.v}}, {}};
  try {
    io::stage_npz(path("in.npz"), inputs).commit();
  } catch (const io::FileError& error) {
    GTEST_SKIP() << error.what();
  }
  ASSERT_EQ(run("run --in in.npz --out o.npy --save all.npz").code, 0);
  EXPECT_EQ(bytes_of(read("o.npy")), bytes_of(sample.out));
  const io::TensorFile saved = io::read_npz(path("all.npz"), [](auto) { return true; });
  ASSERT_EQ(saved.tensors.size(), 2u);
  EXPECT_EQ(bytes_of(*saved.find("out")), bytes_of(sample.out));
  EXPECT_EQ(bytes_of(*saved.find("lse")), bytes_of(sample.lse));
}

TEST_F(Run, StandardInputAndOutputAreFiles) {
  Sample sample;
  sample.compute();
  write_sample(sample);
  const Outcome piped = run("run --q - --k k.npy --v v.npy --out - --lse l.npy",
                            "<" + path("q.npy") + " >" + path("o.npy"));
  ASSERT_EQ(piped.code, 0) << piped.err;
  EXPECT_NE(piped.err.find("forward"), std::string::npos) << "the report is not among the data";
  EXPECT_EQ(bytes_of(read("o.npy")), bytes_of(sample.out));
  EXPECT_EQ(bytes_of(read("l.npy")), bytes_of(sample.lse));
  const io::TensorFile inputs = {{{"q", sample.q}, {"k", sample.k}, {"v", sample.v}}, {}};
  io::write_safetensors(path("in"), inputs);
  ASSERT_EQ(run("run --in - --save -", "<" + path("in") + " >" + path("all")).code, 0);
  const io::TensorFile saved = io::read_safetensors(path("all"));
  EXPECT_EQ(bytes_of(*saved.find("out")), bytes_of(sample.out));
}

TEST_F(Run, NoFileAppearsIfTheStandardOutputIsFull) {
  write_sample(Sample());
  const auto before = contents();
  const Outcome outcome =
      run("run --q q.npy --k k.npy --v v.npy --out - --lse l.npy", ">/dev/full");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("standard output: cannot write"), std::string::npos) << outcome.err;
  EXPECT_EQ(contents(), before);
}

TEST_F(Run, Fp8OfAFileAndOfACastAreTheLibrarysBits) {
  Sample sample;
  write_sample(sample);
  sample.k = random_array(ElementType::e4m3, sample.k.shape, 2);
  sample.v = random_array(ElementType::e4m3, sample.v.shape, 3);
  const Array scale = random_array(ElementType::f32, {1}, 5);
  *reinterpret_cast<float*>(scale.writable.data()) = 0.75f;
  sample.problem.k = view(sample.k, TILEWISE_E4M3);
  sample.problem.v = view(sample.v, TILEWISE_E4M3);
  sample.problem.v_descale = view(scale, TILEWISE_FP32);
  forward(sample.problem);
  write("k8.npy", sample.k);
  write("v8.npy", sample.v);
  write("scale.npy", scale);
  const std::string flags = " --q q.npy --v-descale scale.npy --out o.npy ";
  for (const char* cache : {"--k k8.npy --v v8.npy", "--k k.npy --v v.npy --kv-dtype fp8"}) {
    ASSERT_EQ(run("run" + flags + cache).code, 0) << cache;
    EXPECT_EQ(bytes_of(read("o.npy")), bytes_of(sample.out)) << cache;
  }
}

TEST_F(Run, AMaskOfBytesIsOneOfBooleans) {
  Sample sample;
  Array mask = io::make_array(ElementType::u8, std::vector<std::int64_t>{33, 40});
  for (std::size_t i = 0; i < mask.writable.size(); ++i) mask.writable[i] = std::byte(i % 3 != 0);
  sample.problem.mask = view(mask, TILEWISE_BOOL);
  sample.compute();
  write_sample(sample);
  write("mask.npy", mask);
  ASSERT_EQ(run("run --q q.npy --k k.npy --v v.npy --mask mask.npy --out o.npy").code, 0);
  EXPECT_EQ(bytes_of(read("o.npy")), bytes_of(sample.out));
}

TEST_F(Run, ForcedKernelIsTheOneThatRuns) {
  write_sample(Sample());
  const Outcome outcome =
      run("run --q q.npy --k k.npy --v v.npy --dout do.npy --kernel flash1 --out o.npy --dv dv.npy "
          "--json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json report = json::parse(outcome.out);
  EXPECT_EQ(report["forward"]["kernel"], "flash1");
  EXPECT_EQ(report["backward"]["kernel"], "flash1");
}

TEST_F(Run, PhiIsTakenAndProposed) {
  write("q.npy", random_array(ElementType::f32, {1, 1, 4, 16}, 1));
  write("k.npy", random_array(ElementType::f32, {1, 700, 2, 16}, 2));
  write("v.npy", random_array(ElementType::f32, {1, 700, 2, 16}, 3));
  const std::string files = "run --q q.npy --k k.npy --v v.npy --json --kernel ";
  const Outcome served = run(files + "flash_decoding_pp --phi 0.5 --propose-phi --out near.npy");
  ASSERT_EQ(served.code, 0) << served.err;
  const json phi = json::parse(served.out)["phi"];
  EXPECT_EQ(phi["fallbacks"], 0);
  EXPECT_EQ(phi["serves"], true);
  ASSERT_EQ(phi["proposal"].size(), 4u);
  const Outcome far = run(files + "flash_decoding_pp --phi 500 --out far.npy");
  ASSERT_EQ(far.code, 0) << far.err;
  EXPECT_EQ(json::parse(far.out)["phi"]["fallbacks"], 2 * 16) << "kv heads, splits";
  ASSERT_EQ(run(files + "flash_decoding --out own.npy").code, 0);
  EXPECT_EQ(bytes_of(read("far.npy")), bytes_of(read("own.npy")));
  EXPECT_NE(bytes_of(read("near.npy")), bytes_of(read("own.npy")));
}

TEST_F(Run, InterruptLeavesNoFile) {
  const std::vector<std::int64_t> shape = {1, 8192, 4, 64};
  for (const char* name : {"q.npy", "k.npy", "v.npy"}) {
    write(name, random_array(ElementType::f32, shape, 1));
  }
  const auto before = contents();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (chdir(path("").c_str()) == 0) {
      execl(TILEWISE_CLI, TILEWISE_CLI, "run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy",
            "--kernel", "online_softmax", "--out", "o.npy", "--save", "s.safetensors", nullptr);
    }
    _exit(127);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ASSERT_EQ(kill(child, SIGINT), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << "it ended before the signal came";
  EXPECT_EQ(WTERMSIG(status), SIGINT);
  EXPECT_EQ(contents(), before);
}

}  // namespace
}  // namespace tilewise::cli_test
