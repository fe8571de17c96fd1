#include "random_inputs.h"

#include <fmt/format.h>

#include <algorithm>

#include "convert.h"
#include "verify/fill.h"
#include "verify/random.h"
#include "verify/tensor.h"

namespace tilewise::cli {
namespace {

using verify::Data;
using verify::TensorMember;

// The random tensors, and what seeds their numbers.
struct RandomTensor {
  const char* name;
  TensorMember member;
  std::uint64_t seed;
};
constexpr RandomTensor kRandomTensors[] = {{"q", &tilewise_problem::q, 1},
                                           {"k", &tilewise_problem::k, 2},
                                           {"v", &tilewise_problem::v, 3},
                                           {"dout", &tilewise_problem::dout, 4},
                                           {"bias", &tilewise_problem::bias, 5}};

// Adds a tensor whose numbers are all 0.
void add_zeros(const std::string& name, std::int32_t dtype, const std::vector<std::int64_t>& shape,
               Inputs& inputs) {
  if (!io::byte_size(element_type(dtype), shape)) {
    throw UsageError(
        fmt::format("--shape: {} of shape {} exceeds 2^63 bytes", name, io::shape_text(shape)));
  }
  inputs.arrays[name] = io::make_array(element_type(dtype), shape);
  inputs.problem.*member_of(name) = tensor_of(name, inputs.arrays.at(name));
}

void fill(const RandomTensor& tensor, const Data& data, Inputs& inputs,
          const verify::NormalSource& normal) {
  tilewise_problem& problem = inputs.problem;
  if (tensor.member == &tilewise_problem::bias) return fill_bias(data, problem.bias, normal);
  fill_rows(data, problem, tensor.member, tensor.seed, normal);
}

// Fills the tensors that the data changes, from the numbers of `normal`.
void refill(const Inputs& normal, const Data& data, Inputs& inputs) {
  for (const RandomTensor& tensor : kRandomTensors) {
    if (!changes(data, tensor.member)) continue;
    std::int64_t next = 0;
    fill(tensor, data, inputs,
         [&] { return verify::read_element(normal.problem.*tensor.member, next++); });
  }
}

Data parse(const std::string& name) {
  std::string error;
  const std::optional<Data> data = verify::parse_data(name, &error);
  if (!data) throw UsageError("--data: " + error + "; or all, or several with + between them");
  return *data;
}

void check_tensors(const Data& data, const tilewise_problem& request) {
  const char* const lacking = verify::lacking_tensor(data, request);
  if (lacking == nullptr) return;
  const bool bias = std::string(lacking) == "bias";
  throw UsageError(fmt::format("--data: \"{}\" changes {}, which needs {}", data_name(data),
                               lacking, bias ? "--random-bias" : "--op backward"));
}

}  // namespace

void add_shape_flag(Flags& flags) {
  flags.add_value("shape", "B,Sq,Sk,H,Hk,D[,Dv]", "shape of the problem; its inputs are random");
}

void add_data_flag(Flags& flags) {
  flags.add_value("data", "NAME", "kind of the random inputs (tilewise bench --help lists them)");
}

void add_data_list_flag(Flags& flags) {
  flags.add_list(
      "data", "NAME,...|all",
      "kind of the random inputs, listed below; default normal. Several, or all: a table "
      "of their times");
  flags.add_switch("random-bias", "add a random bias (Sq, Sk) to the scores");
}

std::string data_help() {
  std::string text =
      "Data (NAME+NAME is both; without P, one number of each sequence's first head):\n";
  for (const verify::DataKind& kind : verify::data_kinds()) {
    text += fmt::format("  {:<18}{}", data_syntax(kind), kind.meaning);
    if (kind.fallback > 0) text += fmt::format("; without {}: {}", kind.parameter, kind.fallback);
    text += "\n";
  }
  return text;
}

Shape shape_flag(const Flags& flags) {
  const std::vector<std::int64_t> sizes = flags.integers("shape", 6, 7);
  const Shape shape = {sizes[0],
                       sizes[1],
                       sizes[2],
                       sizes[3],
                       sizes[4],
                       sizes[5],
                       sizes.size() == 7 ? sizes[6] : sizes[5]};
  const auto refuse = [&](const char* limit) {
    throw UsageError(fmt::format("--shape: is \"{}\", {}", flags.text("shape"), limit));
  };
  for (const std::int64_t size : sizes) {
    if (size < 0) refuse("must have no number below 0");
  }
  if (shape.head_dim < 1 || shape.value_dim < 1) refuse("must have D and Dv of at least 1");
  if (shape.kv_heads == 0 ? shape.heads != 0 : shape.heads % shape.kv_heads != 0) {
    refuse("must have H a multiple of Hk");
  }
  return shape;
}

std::vector<Data> data_flag(const Flags& flags, const tilewise_problem& request) {
  std::vector<Data> list;
  const auto add = [&](const Data& data) {
    if (std::find(list.begin(), list.end(), data) == list.end()) list.push_back(data);
  };
  const std::string names = flags.given("data") ? flags.text("data") : "normal";
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t comma = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, comma - begin);
    if (name == "all") {
      for (const Data& data : verify::all_data()) {
        if (verify::lacking_tensor(data, request) == nullptr) add(data);
      }
    } else {
      const Data data = parse(name);
      check_tensors(data, request);
      add(data);
    }
    begin = comma + 1;
  }
  return list;
}

Inputs make_inputs(const Flags& flags, bool backward) {
  Inputs inputs;
  tilewise_problem_init(&inputs.problem);
  read_options(flags, inputs.problem);
  if (flags.text("layout") == "thd") {
    throw UsageError("--layout: is thd, but --shape makes dense tensors: must be bshd or bhsd");
  }
  const Shape shape = shape_flag(flags);
  const std::int32_t dtype = dtype_flag(flags, TILEWISE_FP32);
  const std::int32_t bias_dtype = problem::is_fp8(dtype) ? std::int32_t{TILEWISE_FP32} : dtype;
  const auto rows = [&](std::int64_t length, std::int64_t heads, std::int64_t width) {
    const bool heads_first = inputs.problem.layout == TILEWISE_BHSD;
    return std::vector<std::int64_t>{shape.batch, heads_first ? heads : length,
                                     heads_first ? length : heads, width};
  };
  add_zeros("q", dtype, rows(shape.q_len, shape.heads, shape.head_dim), inputs);
  const std::int32_t kv_dtype = kv_dtype_flag(flags, dtype);
  add_zeros("k", kv_dtype, rows(shape.k_len, shape.kv_heads, shape.head_dim), inputs);
  add_zeros("v", kv_dtype, rows(shape.k_len, shape.kv_heads, shape.value_dim), inputs);
  if (backward) add_zeros("dout", dtype, rows(shape.q_len, shape.heads, shape.value_dim), inputs);
  if (flags.given("random-bias")) add_zeros("bias", bias_dtype, {shape.q_len, shape.k_len}, inputs);
  for (const RandomTensor& tensor : kRandomTensors) {
    verify::Random random(tensor.seed);
    fill(tensor, Data(), inputs, [&] { return random.normal(); });
  }
  return inputs;
}

std::vector<Inputs> with_data(const Inputs& normal, const std::vector<Data>& data,
                              const tilewise_executor& executor) {
  std::vector<Inputs> list(data.size(), normal);
  for (Inputs& inputs : list) {
    for (auto& [name, array] : inputs.arrays) {
      array = io::copy_array(array.type, array.shape, array.bytes);
      inputs.problem.*member_of(name) = tensor_of(name, array);
    }
  }
  // Many large tensors: their filling takes longer than the runs that are measured on a GPU.
  auto fill_one = [&](std::int64_t i) {
    const std::size_t at = static_cast<std::size_t>(i);
    refill(normal, data[at], list[at]);
  };
  problem::parallel_for(executor, static_cast<std::int64_t>(data.size()), fill_one);
  return list;
}

}  // namespace tilewise::cli
