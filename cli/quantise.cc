#include "quantise.h"

#include <fmt/format.h>

#include <tilewise/tilewise_quantise.hpp>

#include "convert.h"

namespace tilewise::cli {
namespace {

const std::vector<std::string> kScales = {"tensor", "head", "block"};

struct Plan {
  int rank;  // a descale tensor has so many dimensions
  bool incoherent;
  std::uint64_t seed;
};

std::int64_t heads_of(const io::Array& array, std::int32_t layout) {
  return array.shape[array.shape.size() == 4 && layout == TILEWISE_BSHD ? 2 : 1];
}

// Shape (1), (B, Hk) or (B, Hk, blocks) of the scales of `array`; B of a packed one by its starts.
std::vector<std::int64_t> scales_shape(const io::Array& array, std::int64_t kv_heads,
                                       const io::Array* starts, int rank, std::int32_t layout) {
  const bool packed = array.shape.size() == 3;
  const std::int64_t rows = array.shape[packed ? 0 : layout == TILEWISE_BHSD ? 2 : 1];
  std::int64_t batch = packed ? 1 : array.shape[0];
  if (packed && rank == 2 && starts != nullptr) batch = starts->shape[0] - 1;
  std::vector<std::int64_t> shape = {batch, kv_heads, (rows + 127) / 128};
  if (rank == 1) shape[0] = 1;
  shape.resize(static_cast<std::size_t>(rank));
  return shape;
}

const io::Array* starts_of(const std::string& name, const Inputs& inputs) {
  const bool own = name != "q" && inputs.has("cu_seqlens_k");
  const std::string starts = own ? "cu_seqlens_k" : "cu_seqlens_q";
  return inputs.has(starts) ? &inputs.arrays.at(starts) : nullptr;
}

// Replaces the array `name` by its numbers in `dtype`, and adds its scales if that is fp8.
void quantise_one(const std::string& name, std::int32_t dtype, const Plan& plan, Inputs& inputs) {
  io::Array& array = inputs.arrays.at(name);
  const std::int32_t own = floating_dtype(name, array);
  if (own == TILEWISE_FP64) array = cast(array, TILEWISE_FP32);
  Quantisation task;
  task.layout = inputs.problem.layout;
  task.incoherent = plan.incoherent && name != "v";
  task.seed = plan.seed;
  task.input = tensor_of(name, array);
  io::Array stored = io::make_array(element_type(dtype), array.shape);
  task.output = tensor_of(name, stored);
  const std::string descale = name + "_descale";
  if (problem::is_fp8(dtype)) {
    if (inputs.has(descale)) {
      throw UsageError(fmt::format("--scales: given, but there is a {} already", descale));
    }
    const io::Array* const starts = starts_of(name, inputs);
    const std::int64_t kv_heads = heads_of(inputs.arrays.at("k"), task.layout);
    io::Array scales = io::make_array(
        io::ElementType::f32, scales_shape(array, kv_heads, starts, plan.rank, task.layout));
    task.descale = tensor_of(descale, scales);
    if (plan.rank == 2 && starts != nullptr && array.shape.size() == 3)
      task.cu_seqlens = tensor_of("cu_seqlens", *starts);
    quantise(task);
    inputs.arrays[descale] = scales;
  } else {
    quantise(task);
  }
  array = stored;
}

}  // namespace

void add_quantise_flags(Flags& flags) {
  flags.add_value(
      "scales", "tensor|head|block",
      "with a cast to fp8: compute scales, of the tensor, of a sequence and head, or of "
      "128 rows");
  flags.add_value("incoherent", "SEED",
                  "with --scales: multiply q and k by one random orthogonal matrix first");
}

void quantise_inputs(const Flags& flags, Inputs& inputs) {
  if (!flags.given("scales")) {
    if (!flags.given("incoherent")) return;
    throw UsageError("--incoherent: given without --scales");
  }
  const Plan plan = {static_cast<int>(flags.choice("scales", kScales)) + 1,
                     flags.given("incoherent"), flags.natural("incoherent", UINT64_MAX)};
  for (const char* name : {"q", "k", "v"}) {
    const std::size_t rank = inputs.arrays.at(name).shape.size();
    if (rank != 3 && rank != 4) {
      throw UsageError(
          fmt::format("{}: has {} dimensions, must have 4 (dense) or 3 (packed)", name, rank));
    }
  }
  const std::int32_t q_dtype = dtype_flag(flags, floating_dtype("q", inputs.arrays.at("q")));
  const std::int32_t kv_dtype = kv_dtype_flag(flags, dtype_flag(flags, TILEWISE_FP32));
  if (!problem::is_fp8(kv_dtype)) {
    throw UsageError("--scales: given, but neither --dtype nor --kv-dtype casts k and v to fp8");
  }
  if (problem::is_fp8(q_dtype) || plan.incoherent) quantise_one("q", q_dtype, plan, inputs);
  quantise_one("k", kv_dtype, plan, inputs);
  quantise_one("v", kv_dtype, plan, inputs);
}

}  // namespace tilewise::cli
