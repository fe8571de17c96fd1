// Wrong flags and files give exit code 2 and one line that says what is wrong and why; nothing is
// written.
#include <algorithm>
#include <fstream>

#include "io/safetensors.h"
#include "support.h"

namespace tilewise::cli_test {
namespace {

using io::Array;
using io::ElementType;

constexpr const char* kInputs = "--q q.npy --k k.npy --v v.npy ";

class BadInput : public Cli {
 protected:
  BadInput() {
    write("q.npy", random_array(ElementType::f32, {1, 5, 2, 8}, 1));
    write("k.npy", random_array(ElementType::f32, {1, 6, 2, 8}, 2));
    write("v.npy", random_array(ElementType::f32, {1, 6, 2, 8}, 3));
    write("do.npy", random_array(ElementType::f32, {1, 5, 2, 8}, 4));
    std::ofstream(path("o.npy")) << "an old result";
  }

  // Expects that the message contains every one of `words`.
  void expect_refusal(const std::string& arguments, const std::vector<std::string>& words) const {
    const auto before = contents();
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    for (const std::string& word : words) {
      EXPECT_NE(outcome.err.find(word), std::string::npos)
          << arguments << "\n  says: " << outcome.err << "  without: " << word;
    }
    EXPECT_EQ(contents(), before) << arguments;
  }
  void expect_run_refusal(const std::string& flags, const std::vector<std::string>& words) const {
    expect_refusal("run " + std::string(kInputs) + "--out o.npy " + flags, words);
  }
};

TEST_F(BadInput, UnknownCommandsAndFlagsAreRefused) {
  expect_refusal("", {"subcommand"});
  expect_refusal("fly", {"fly", "run, compare, explain, bench, check, info"});
  expect_refusal("run --wings 2", {"--wings"});
  expect_refusal("info extra", {"extra"});
}

TEST_F(BadInput, TheStandardStreamsAreOneFileEach) {
  expect_refusal("run --q - --k - --v v.npy --out o.npy", {"--k", "standard input", "--q"});
  expect_refusal("run --in - --v - --out o.npy", {"--v", "standard input", "--in"});
  expect_refusal("run " + std::string(kInputs) + "--out - --lse -", {"--lse", "-", "another"});
}

TEST_F(BadInput, InvalidNumbersAreRefused) {
  expect_run_refusal("--scale fast", {"--scale", "\"fast\"", "finite number"});
  expect_run_refusal("--scale inf", {"--scale", "\"inf\""});
  expect_run_refusal("--scale nan", {"--scale", "\"nan\""});
  expect_run_refusal("--softcap -1", {"softcap", "-1", ">= 0"});
  expect_run_refusal("--dropout 1", {"dropout_p", "1", "< 1"});
  expect_run_refusal("--dropout 0.5x", {"--dropout", "0.5x"});
  expect_run_refusal("--seed -1", {"--seed", "-1", "from 0"});
  expect_run_refusal("--seed 18446744073709551616", {"--seed", "18446744073709551615"});
  expect_run_refusal("--offset 4294967296", {"--offset", "4294967295"});
  expect_run_refusal("--threads 0", {"--threads", "0", "1 to"});
  expect_run_refusal("--threads two", {"--threads", "two"});
  expect_run_refusal("--window 3", {"--window", "3", "2 numbers"});
  expect_run_refusal("--window 3,", {"--window", "3,"});
  expect_run_refusal("--window -2,0", {"window_left", "-2", ">= -1"});
}

TEST_F(BadInput, UnknownChoicesAreRefused) {
  expect_run_refusal("--layout sbhd", {"--layout", "sbhd", "bshd, bhsd, thd"});
  expect_run_refusal("--layout thd", {"--layout", "thd", "q has 4 dimensions"});
  expect_run_refusal("--causal=left", {"--causal", "left", "top-left"});
  expect_run_refusal("--causal=top-left --align bottom-right", {"--align", "--causal"});
  expect_run_refusal("--align middle", {"--align", "middle"});
  expect_run_refusal("--dtype fp6", {"--dtype", "fp6", "fp64, fp32, bf16, fp16, e4m3, e5m2, fp8"});
  expect_run_refusal("--kv-dtype fp6", {"--kv-dtype", "fp6", "e4m3, e5m2, fp8"});
  expect_run_refusal("--kernel magic", {"kernel", "magic", "three_pass"});
  expect_run_refusal("--device gpu", {"--device", "gpu", "cpu, cuda"});
  expect_run_refusal("--deterministic=maybe", {"deterministic", "flag override"});
}

TEST_F(BadInput, Fp8IsRefusedWhereNothingReadsIt) {
  write("scale.npy", random_array(ElementType::f32, {3}, 1));
  const std::string shape = "--shape 1,8,8,2,1,8 ";
  expect_run_refusal("--dtype fp64 --kv-dtype fp8", {"q", "fp64", "bf16, fp16 or fp32"});
  expect_run_refusal("--k-descale scale.npy", {"k_descale", "fp32", "e4m3 or e5m2"});
  expect_run_refusal("--kv-dtype fp8 --k-descale scale.npy", {"k_descale", "3", "(1)"});
  expect_run_refusal("--kv-dtype fp8 --dout do.npy --dq dq.npy", {"k", "e4m3", "backward"});
  expect_run_refusal("--dtype e5m2 --ranks 2", {"k", "e5m2", "distributed attention"});
  expect_refusal("explain " + shape + "--dtype fp8", {"--dtype", "fp8", "explain"});
  expect_refusal("explain " + shape + "--kv-dtype e5m2", {"--kv-dtype", "explain"});
#if defined(__x86_64__)
  for (const char* kernel : {"cpu_amx", "cpu_avx512_bf16"})
    expect_run_refusal("--dtype bf16 --kv-dtype fp8 --kernel " + std::string(kernel),
                       {"k", "e4m3", kernel});
#endif
}

TEST_F(BadInput, MissingAndRepeatedFlagsAreRefused) {
  expect_refusal("run --q q.npy --k k.npy --out o.npy", {"--v", "missing"});
  expect_refusal("run " + std::string(kInputs), {"--out", "missing"});
  expect_refusal("run --q q.npy --q q.npy", {"--q"});
  expect_run_refusal("--dq dq.npy", {"--dq", "--dout"});
  expect_run_refusal("--dout do.npy --dbias db.npy", {"--dbias", "--bias"});
  expect_run_refusal("--lse o.npy", {"--lse", "o.npy", "another output"});
  expect_run_refusal("--out", {"--out"});
}

TEST_F(BadInput, TensorsOfAWrongTypeOrShapeAreRefused) {
  write("wide.npy", random_array(ElementType::f32, {1, 6, 2, 9}, 5));
  write("flat.npy", random_array(ElementType::f32, {6}, 5));
  write("double.npy", random_array(ElementType::f64, {1, 6, 2, 8}, 5));
  write("index.npy", index_array({0, 3, 5}, {3}));
  expect_refusal("run --q q.npy --k wide.npy --v v.npy --out o.npy",
                 {"k: head dimension", "9", "8"});
  expect_refusal("run --q q.npy --k k.npy --v flat.npy --out o.npy", {"v", "1 dimensions", "4"});
  expect_refusal("run --q q.npy --k double.npy --v v.npy --out o.npy", {"k", "fp64", "fp32"});
  expect_refusal("run --q index.npy --k k.npy --v v.npy --out o.npy", {"q", "int64", "fp64"});
  expect_run_refusal("--mask q.npy", {"mask", "fp32", "bool"});
  expect_run_refusal("--sink index.npy", {"sink", "int64"});
  expect_run_refusal("--cu-seqlens-q index.npy", {"cu_seqlens_q", "dense"});
  expect_run_refusal("--seqused-k index.npy", {"seqused_k", "(3)", "(1)"});
  expect_run_refusal("--dout v.npy --dq dq.npy", {"dout", "(1, 6, 2, 8)", "(1, 5, 2, 8)"});
}

TEST_F(BadInput, InvalidIndicesAreRefused) {
  for (const char* name : {"pq.npy", "pk.npy", "pv.npy"}) {
    write(name, random_array(ElementType::f32, {9, 2, 8}, 1));
  }
  write("falling.npy", index_array({0, 7, 4, 9}, {4}));
  write("long.npy", index_array({0, 10}, {2}));
  const std::string packed = "run --q pq.npy --k pk.npy --v pv.npy --out o.npy ";
  expect_refusal(packed, {"cu_seqlens_q", "missing"});
  expect_refusal(packed + "--cu-seqlens-q falling.npy", {"cu_seqlens_q[2]", "4", "7"});
  expect_refusal(packed + "--cu-seqlens-q long.npy", {"cu_seqlens_q[1]", "10", "9"});
  Array bytes = io::make_array(ElementType::u8, std::vector<std::int64_t>{5, 6});
  bytes.writable[6 * 2 + 3] = std::byte{7};
  write("bytes.npy", bytes);
  expect_run_refusal("--mask bytes.npy", {"mask[2, 3]", "is 7", "0 or 1"});
  write("used.npy", index_array({7}, {1}));
  expect_run_refusal("--seqused-k used.npy", {"seqused_k[0]", "7", "6"});
  expect_run_refusal("--seqused-q used.npy", {"seqused_q[0]", "7", "5"});
  write("table.npy", index_array({0, 1L << 40}, {1, 2}));
  expect_run_refusal("--page-table table.npy", {"page_table[0, 1]", "1099511627776", "int32"});
  write("table.npy", index_array({0, 1}, {1, 2}));
  expect_run_refusal("--page-table table.npy", {"page_table[0][1]", "is 1", "0 and 0"});
  write("table.npy", index_array({0, 0}, {1, 2}));
  expect_run_refusal("--page-table table.npy --dout q.npy --dq dq.npy", {"page_table", "backward"});
  write("slices.npy", index_array({0, 5, 0, 6, 4}, {1, 5}));
  expect_run_refusal("--slices slices.npy", {"slices[0]", "kind", "4"});
  expect_run_refusal("--slices slices.npy --causal", {"slices", "causal"});
}

TEST_F(BadInput, UnreadableFilesAreRefused) {
  std::ofstream(path("text.npy")) << "hello";
  std::ofstream(path("text.safetensors")) << "hello";
  const std::string whole = contents().at("q.npy");
  std::ofstream(path("short.npy"), std::ios::binary) << whole.substr(0, whole.size() - 1);
  expect_refusal("run --q none.npy --k k.npy --v v.npy --out o.npy", {"none.npy", "No such file"});
  expect_refusal("run --q text.npy --k k.npy --v v.npy --out o.npy", {"text.npy"});
  expect_refusal("run --q short.npy --k k.npy --v v.npy --out o.npy", {"short.npy"});
  expect_refusal("run --q . --k k.npy --v v.npy --out o.npy", {"."});
  expect_refusal("run --in text.safetensors --save s.safetensors", {"text.safetensors"});
  io::write_safetensors(path("q.safetensors"), {{{"q", read("q.npy")}}, {}});
  expect_refusal("run --in q.safetensors --save s.safetensors", {"q.safetensors", "no tensor k"});
  expect_refusal("run --in q.safetensors --q q.npy --save s.safetensors", {"--q", "q.safetensors"});
}

// If one output cannot be written, none is.
TEST_F(BadInput, OneUnwritableOutputPreventsAllOfThem) {
  expect_run_refusal("--lse nowhere/l.npy", {"nowhere/l.npy"});
  expect_run_refusal("--save nowhere/s.safetensors", {"nowhere/s.safetensors"});
}

TEST_F(BadInput, EveryCommandRefusesInvalidFlags) {
  expect_refusal("compare", {"--q", "missing"});
  expect_refusal("compare --shape 1,2,3", {"--shape", "1,2,3", "6 to 7"});
  expect_refusal("compare --shape 1,8,8,3,2,8", {"--shape", "multiple of Hk"});
  expect_refusal("compare --shape 1,8,8,2,2,0", {"--shape", "D"});
  expect_refusal("compare --shape 1,8,-8,2,2,8", {"--shape", "below 0"});
  expect_refusal("compare --shape 4611686018427387904,8,8,2,2,8", {"--shape", "2^63"});
  expect_refusal("compare --shape 1,8,8,2,2,8 --q q.npy", {"--shape"});
  expect_refusal("compare --shape 1,8,8,2,2,8 --kernels flash2,flash",
                 {"--kernels", "flash", "no kernel"});
  expect_refusal("compare --shape 1,8,8,2,2,8 --sram 1", {"--sram", "64"});
  expect_refusal("compare --shape 1,8,8,2,2,8 --plot nowhere/p.svg", {"nowhere/p.svg"});
  expect_refusal("compare --op sideways --shape 1,8,8,2,2,8", {"--op", "sideways"});
  expect_refusal("compare --op backward " + std::string(kInputs), {"--dout", "missing"});
  expect_refusal("explain", {"--shape", "missing"});
  expect_refusal("explain --shape 1,8,8,2,2,8 --sram 0", {"--sram", "0"});
  expect_refusal("bench", {"--shape", "missing"});
  expect_refusal("bench --op decode --shape 1,64,64,2,2,8", {"--shape", "decode", "16"});
  expect_refusal("bench --shape 1,8,8,2,2,8 --seconds -1", {"--seconds", "-1"});
  expect_refusal("bench --shape 1,8,8,2,2,8 --data fast",
                 {"--data", "\"fast\"", "normal", "scaled:X", "nan-k", "all"});
  expect_refusal("bench --shape 1,8,8,2,2,8 --data scaled:big", {"scaled:big", "1e+30"});
  expect_refusal("bench --shape 1,8,8,2,2,8 --data nan-dout", {"nan-dout", "--op backward"});
  expect_refusal("bench --shape 1,8,8,2,2,8 --data bias-columns", {"--random-bias"});
  expect_refusal("compare --shape 1,8,8,2,2,8 --data nan-k,nan-v", {"--data", "one kind"});
  expect_refusal("compare --op backward --dtype fp8 --shape 1,8,8,2,2,8",
                 {"no kernel computes this", "k: dtype is e4m3", "backward"});
  expect_refusal("compare --data nan-k " + std::string(kInputs), {"--data", "--shape"});
  expect_refusal("bench --shape 1,8,8,2,2,8 --layout thd", {"--layout", "thd"});
  expect_refusal("check --kernel magic", {"--kernel", "magic", "three_pass"});
}

}  // namespace
}  // namespace tilewise::cli_test
