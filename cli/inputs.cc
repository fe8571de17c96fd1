#include "inputs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "convert.h"
#include "io/npy.h"
#include "io/tensor_file.h"
#include "problem/tensors.h"
#include "problem/validate.h"
#include "quantise.h"

namespace tilewise::cli {
namespace {

// An input that is read from a file: its flag, its tensor, and its line in --help.
struct InputFile {
  const char* flag;
  const char* tensor;
  const char* help;
};
constexpr InputFile kInputFiles[] = {
    {"q", "q", "queries (B, Sq, H, D), or packed (T, H, D)"},
    {"k", "k", "keys (B, Sk, Hk, D), or packed"},
    {"v", "v", "values (B, Sk, Hk, Dv), or packed"},
    {"dout", "dout", "gradient of out; requests the backward pass too"},
    {"dlse", "dlse", "gradient of lse"},
    {"cu-seqlens-q", "cu_seqlens_q", "starts of the packed query sequences, and the end (B+1)"},
    {"cu-seqlens-k", "cu_seqlens_k", "those of the keys (B+1); default: those of the queries"},
    {"seqused-q", "seqused_q", "number of query rows in use, for each sequence (B)"},
    {"seqused-k", "seqused_k", "number of keys in use, for each sequence (B)"},
    {"page-table", "page_table",
     "pages of each sequence (B, pages); k and v are pages (N, page size, Hk, D)"},
    {"bias", "bias", "added to the scores, broadcast to (B, H, Sq, Sk)"},
    {"mask", "mask", "bool or uint8 (0, 1), true is visible, broadcast to (B, H, Sq, Sk)"},
    {"alibi", "alibi_slopes", "ALiBi slopes (H) or (B, H)"},
    {"sink", "sink", "a logit per head that joins the denominator (H)"},
    {"q-descale", "q_descale", "what q of fp8 is multiplied by: (1), (B, Hk), or per 128 rows"},
    {"k-descale", "k_descale", "the same for k"},
    {"v-descale", "v_descale", "the same for v"},
    {"slices", "slices", "the whole mask as int64 rows q0 q1 k0 k1 kind [head]"},
};

const std::vector<std::string> kDtypes = {"fp64", "fp32", "bf16", "fp16", "e4m3", "e5m2", "fp8"};
constexpr std::int32_t kDtypeNumbers[] = {TILEWISE_FP64, TILEWISE_FP32, TILEWISE_BF16,
                                          TILEWISE_FP16, TILEWISE_E4M3, TILEWISE_E5M2,
                                          TILEWISE_E4M3};
const std::vector<std::string> kAlignments = {"bottom-right", "top-left"};

bool is_input(std::string_view tensor) {
  return std::any_of(std::begin(kInputFiles), std::end(kInputFiles),
                     [&](const InputFile& input) { return tensor == input.tensor; });
}

// The standard input is one file.
void check_standard_input(const Flags& flags) {
  std::string reader = flags.text("in") == kStandardStream ? "in" : "";
  for (const InputFile& input : kInputFiles) {
    if (flags.text(input.flag) != kStandardStream) continue;
    if (!reader.empty()) {
      throw UsageError(fmt::format("--{}: is -, the standard input, which --{} reads already",
                                   input.flag, reader));
    }
    reader = input.flag;
  }
}

io::TensorFile read_tensors(const std::string& path) {
  if (path == kStandardStream) return io::read_tensor_stream(STDIN_FILENO, "standard input");
  return io::read_tensor_file(path, is_input);
}

io::Array read_array(const std::string& path) {
  if (path == kStandardStream) return io::read_npy_stream(STDIN_FILENO, "standard input");
  return io::read_npy(path);
}

void read_files(const Flags& flags, Inputs& inputs) {
  check_standard_input(flags);
  if (flags.given("in")) {
    const io::TensorFile file = read_tensors(flags.text("in"));
    for (const InputFile& input : kInputFiles) {
      const io::Array* const array = file.find(input.tensor);
      if (array != nullptr) inputs.arrays[input.tensor] = *array;
    }
  }
  for (const InputFile& input : kInputFiles) {
    if (!flags.given(input.flag)) continue;
    if (inputs.has(input.tensor)) {
      throw UsageError(fmt::format("--{}: is {}, but --in {} holds {} already", input.flag,
                                   flags.text(input.flag), flags.text("in"), input.tensor));
    }
    inputs.arrays[input.tensor] = read_array(flags.text(input.flag));
  }
  for (const char* name : {"q", "k", "v"}) {
    if (inputs.has(name)) continue;
    throw UsageError(flags.given("in")
                         ? fmt::format("--in: {} holds no tensor {}", flags.text("in"), name)
                         : fmt::format("--{}: missing (or --in FILE)", name));
  }
}

// Casts the inputs. q, k, v and dout are cast to the problem's dtype only with --dtype; statistics,
// slopes, sink and page table have one dtype, to which they are always cast. A mask of bytes
// becomes one of bool.
void cast_inputs(const Flags& flags, Inputs& inputs) {
  const std::int32_t dtype = dtype_flag(flags, floating_dtype("q", inputs.arrays.at("q")));
  const std::int32_t statistics = dtype == TILEWISE_FP64 ? TILEWISE_FP64 : TILEWISE_FP32;
  const std::int32_t bias_dtype = problem::is_fp8(dtype) ? std::int32_t{TILEWISE_FP32} : dtype;
  for (auto& [name, array] : inputs.arrays) {
    const bool keys = name == "k" || name == "v";
    const bool rows = keys || name == "q" || name == "dout";
    if (rows && (flags.given("dtype") || (keys && flags.given("kv-dtype")))) {
      floating_dtype(name, array);
      array = cast(array, keys ? kv_dtype_flag(flags, dtype) : dtype);
    } else if (name == "bias" && floating_dtype(name, array) != TILEWISE_FP32 &&
               flags.given("dtype")) {
      array = cast(array, bias_dtype);
    } else if (name == "dlse") {
      floating_dtype(name, array);
      array = cast(array, statistics);
    } else if (name == "mask" && array.type == io::ElementType::u8) {
      array = as_boolean(name, array);
    } else if (name == "page_table" && array.type == io::ElementType::i64) {
      array = as_int32(name, array);
    } else if (name == "alibi_slopes" || name == "sink" || name.ends_with("_descale")) {
      floating_dtype(name, array);
      array = cast(array, TILEWISE_FP32);
    }
  }
}

void fill_tensors(const Flags& flags, Inputs& inputs) {
  for (const auto& [name, array] : inputs.arrays) {
    inputs.problem.*member_of(name) = tensor_of(name, array);
  }
  tilewise_problem& problem = inputs.problem;
  if (flags.text("layout") == "thd") {
    for (const char* name : {"q", "k", "v"}) {
      const std::int32_t rank = (problem.*member_of(name)).rank;
      if (rank != 3) {
        throw UsageError(
            fmt::format("--layout: is thd, but {} has {} dimensions, must have 3", name, rank));
      }
    }
  }
  for (const char* name : {"q", "k", "v"}) {
    const std::int32_t rank = (problem.*member_of(name)).rank;
    if (rank == 3 || rank == 4) continue;
    throw UsageError(
        fmt::format("{}: has {} dimensions, must have 4 (dense) or 3 (packed)", name, rank));
  }
  const bool k_packed = problem.k.rank == 3;
  if (k_packed && !inputs.has("cu_seqlens_k") && inputs.has("cu_seqlens_q")) {
    problem.cu_seqlens_k = problem.cu_seqlens_q;
  }
}

void add_output(const char* name, std::int32_t dtype, const std::vector<std::int64_t>& shape,
                Inputs& inputs) {
  if (inputs.has(name)) return;
  inputs.arrays[name] = io::make_array(element_type(dtype), shape);
  inputs.problem.*member_of(name) = tensor_of(name, inputs.arrays.at(name));
}

}  // namespace

tilewise_tensor tilewise_problem::*member_of(const std::string& name) {
  for (const problem::NamedTensor& tensor : problem::kTensors) {
    if (name == tensor.name) return tensor.member;
  }
  throw UsageError(fmt::format("{}: no tensor has this name", name));
}

void add_option_flags(Flags& flags) {
  flags.begin_group("Attention");
  flags.add_value("layout", "bshd|bhsd|thd", "order of dimensions; thd: packed (T, H, D)");
  flags.add_switch_with_value("causal", "true",
                              "a query sees no later key; =top-left counts from the first key");
  flags.add_value("align", "bottom-right|top-left",
                  "corner that causal, window and ALiBi start from; default bottom-right");
  flags.add_value("window", "L,R", "a query sees keys i+d-L to i+d+R; -1 is unbounded");
  flags.add_value("scale", "X", "factor of the scores; default 1/sqrt(D)");
  flags.add_value("softcap", "X", "scores become X tanh(score / X); 0 is off");
  flags.add_value("dropout", "P", "probability of dropping a key, 0 <= P < 1");
  flags.add_value("seed", "N", "seed of the dropout; default 0");
  flags.add_value("offset", "N", "offset of the dropout; default 0");
  flags.add_switch("deterministic", "backward gives the same bits in every run");
  flags.add_switch("batch-invariant", "a row's bits do not depend on the rest of the batch");
  flags.add_value("dtype", "fp64|fp32|bf16|fp16|e4m3|e5m2|fp8",
                  "cast q, k, v, dout (and bias) on load; fp8 is e4m3");
  flags.add_value("kv-dtype", "DTYPE", "cast k and v to another dtype than q: e4m3, e5m2 or fp8");
}

void add_file_flags(Flags& flags) {
  add_quantise_flags(flags);
  flags.begin_group("Inputs");
  flags.add_value("in", "FILE",
                  "a .safetensors or .npz file with q, k, v [, dout and the inputs below]");
  for (const InputFile& input : kInputFiles) flags.add_value(input.flag, "FILE", input.help);
}

void add_execution_flags(Flags& flags) {
  flags.begin_group("Execution");
  flags.add_value("device", "cpu|cuda",
                  "device to run on; cuda: tensors are copied there and back");
  flags.add_value("threads", "N", "number of threads; default: all that this process may use");
}

std::int32_t dtype_flag(const Flags& flags, std::int32_t fallback) {
  if (!flags.given("dtype")) return fallback;
  return kDtypeNumbers[flags.choice("dtype", kDtypes)];
}

std::int32_t kv_dtype_flag(const Flags& flags, std::int32_t fallback) {
  if (!flags.given("kv-dtype")) return fallback;
  return kDtypeNumbers[flags.choice("kv-dtype", kDtypes)];
}

void read_options(const Flags& flags, tilewise_problem& problem) {
  problem.layout =
      flags.choice("layout", {"bshd", "bhsd", "thd"}) == 1 ? TILEWISE_BHSD : TILEWISE_BSHD;
  problem.causal = flags.given("causal") ? 1 : 0;
  // --causal without a value is read as "true"; then --align decides.
  const std::size_t by_causal = flags.choice("causal", {"true", kAlignments[0], kAlignments[1]});
  const std::size_t by_align = flags.choice("align", kAlignments);
  if (by_causal > 0 && flags.given("align") && by_causal - 1 != by_align) {
    throw UsageError(fmt::format("--align: is {}, but --causal is {}", kAlignments[by_align],
                                 kAlignments[by_causal - 1]));
  }
  problem.alignment = by_causal == 2 || by_align == 1 ? TILEWISE_TOP_LEFT : TILEWISE_BOTTOM_RIGHT;
  if (flags.given("window")) {
    const std::vector<std::int64_t> window = flags.integers("window", 2, 2);
    problem.window_left = window[0];
    problem.window_right = window[1];
  }
  problem.softmax_scale = flags.number("scale", TILEWISE_DEFAULT_SCALE);
  problem.softcap = flags.number("softcap", 0);
  problem.dropout_p = flags.number("dropout", 0);
  problem.dropout_seed = flags.natural("seed", UINT64_MAX);
  problem.dropout_offset = flags.natural("offset", UINT32_MAX);
  problem.deterministic = flags.given("deterministic") ? 1 : 0;
  problem.batch_invariant = flags.given("batch-invariant") ? 1 : 0;
}

Inputs read_inputs(const Flags& flags) {
  Inputs inputs;
  tilewise_problem_init(&inputs.problem);
  read_options(flags, inputs.problem);
  dtype_flag(flags, 0);
  read_files(flags, inputs);
  quantise_inputs(flags, inputs);
  cast_inputs(flags, inputs);
  fill_tensors(flags, inputs);
  return inputs;
}

void add_outputs(problem::Operation operation, Inputs& inputs) {
  const tilewise_problem& problem = inputs.problem;
  const std::int32_t dtype =
      problem::is_fp8(problem.q.dtype) ? std::int32_t{TILEWISE_BF16} : problem.q.dtype;
  const std::int32_t statistics = dtype == TILEWISE_FP64 ? TILEWISE_FP64 : TILEWISE_FP32;
  const std::vector<std::int64_t> query = inputs.arrays.at("q").shape;
  if (operation == problem::Operation::kForward) {
    std::vector<std::int64_t> out = query;
    out.back() = inputs.arrays.at("v").shape.back();
    add_output("out", dtype, out, inputs);
    std::vector<std::int64_t> lse = {query[1], query[0]};
    if (query.size() == 4) {
      const bool heads_first = problem.layout == TILEWISE_BHSD;
      lse = {query[0], query[heads_first ? 1 : 2], query[heads_first ? 2 : 1]};
    }
    add_output("lse", statistics, lse, inputs);
    return;
  }
  add_output("dq", dtype, query, inputs);
  add_output("dk", dtype, inputs.arrays.at("k").shape, inputs);
  add_output("dv", dtype, inputs.arrays.at("v").shape, inputs);
  if (inputs.has("bias")) {
    add_output("dbias", problem.bias.dtype, inputs.arrays.at("bias").shape, inputs);
  }
  if (inputs.has("sink")) add_output("dsink", statistics, inputs.arrays.at("sink").shape, inputs);
}

}  // namespace tilewise::cli
