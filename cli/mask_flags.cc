#include "mask_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "inputs.h"
#include "io/npy.h"

namespace tilewise::cli {
namespace {

using distributed::magi::Mask;
using distributed::magi::Slice;

constexpr std::int64_t kMostSequences = 65536;

void require(problem::Status status) {
  if (status != TILEWISE_OK) throw UsageError(problem::message());
}

// The numbers of a .npy file of int64 or int32 with `columns` columns; 0: one dimension.
std::vector<std::int64_t> read_numbers(const Flags& flags, const std::string& name,
                                       std::size_t columns) {
  const io::Array array = io::read_npy(flags.text(name));
  const std::size_t rank = columns > 0 ? 2 : 1;
  const bool wide = array.type == io::ElementType::i64;
  if ((!wide && array.type != io::ElementType::i32) || array.shape.size() != rank) {
    throw UsageError(fmt::format("--{}: {} holds {} of shape {}, must hold int64 with {} {}", name,
                                 flags.text(name), io::element_name(array.type),
                                 io::shape_text(array.shape), rank,
                                 rank == 1 ? "dimension" : "dimensions"));
  }
  std::vector<std::int64_t> numbers;
  if (wide) {
    for (const std::int64_t number : array.elements<std::int64_t>()) numbers.push_back(number);
  } else {
    for (const std::int32_t number : array.elements<std::int32_t>()) numbers.push_back(number);
  }
  if (columns == 0) return numbers;
  if (array.shape[1] != 5 && array.shape[1] != 6) {
    throw UsageError(
        fmt::format("--{}: {} has {} columns, must have 5 or 6: q0 q1 k0 k1 kind [head]", name,
                    flags.text(name), array.shape[1]));
  }
  std::vector<std::int64_t> rows;
  const auto width = static_cast<std::size_t>(array.shape[1]);
  for (std::size_t row = 0; row * width < numbers.size(); ++row) {
    for (std::size_t c = 0; c < columns; ++c)
      rows.push_back(c < width ? numbers[row * width + c] : -1);
  }
  return rows;
}

std::vector<Slice> read_slices(const Flags& flags) {
  const std::vector<std::int64_t> numbers = read_numbers(flags, "slices", 6);
  std::vector<Slice> slices;
  for (std::size_t i = 0; i < numbers.size(); i += 6) {
    slices.push_back({numbers[i], numbers[i + 1], numbers[i + 2], numbers[i + 3], numbers[i + 4],
                      numbers[i + 5]});
  }
  return slices;
}

Mask mask_of_file(const Flags& flags, const Shape& shape) {
  for (const char* other : {"causal", "window", "cu-seqlens-q", "cu-seqlens-k"}) {
    if (flags.given(other)) {
      throw UsageError(
          fmt::format("--slices: given with --{}; a slice list is the whole mask", other));
    }
  }
  const std::vector<Slice> slices = read_slices(flags);
  Mask mask;
  require(mask_of_slices(slices, shape.q_len, shape.k_len, shape.heads, &mask));
  return mask;
}

// The starts of the documents: those of the file, or B sequences of the same length. With a file,
// --shape gives their sum.
std::vector<std::int64_t> starts(const Flags& flags, const char* name, std::int64_t length,
                                 std::int64_t batch) {
  if (!flags.given(name)) {
    std::vector<std::int64_t> equal;
    for (std::int64_t b = 0; b <= batch; ++b) equal.push_back(b * length);
    return equal;
  }
  const std::vector<std::int64_t> numbers = read_numbers(flags, name, 0);
  if (batch != 1 || numbers.empty() || numbers.back() != length) {
    throw UsageError(
        fmt::format("--{}: ends with {}, must end with the length of --shape, {}, whose B "
                    "must be 1",
                    name, numbers.empty() ? 0 : numbers.back(), length));
  }
  return numbers;
}

}  // namespace

void add_mask_flags(Flags& flags) {
  flags.begin_group("Mask");
  flags.add_value("slices", "FILE", "the whole mask as int64 rows q0 q1 k0 k1 kind [head]");
  flags.add_value("cu-seqlens-q", "FILE", "starts of packed documents, and the end");
  flags.add_value("cu-seqlens-k", "FILE", "those of the keys; default: those of the queries");
}

Shape shape_of_slices(const Flags& flags) {
  Shape shape = {
      .batch = 1, .q_len = 0, .k_len = 0, .heads = 1, .kv_heads = 1, .head_dim = 1, .value_dim = 1};
  for (const Slice& slice : read_slices(flags)) {
    shape.q_len = std::max(shape.q_len, slice.q_end);
    shape.k_len = std::max(shape.k_len, slice.k_end);
    shape.heads = std::max(shape.heads, slice.head + 1);
  }
  return shape;
}

Mask read_mask(const Flags& flags, const Shape& shape) {
  if (flags.given("slices")) {
    if (shape.batch != 1) {
      throw UsageError(fmt::format("--slices: needs a --shape with B = 1, not {}", shape.batch));
    }
    return mask_of_file(flags, shape);
  }
  if (flags.given("cu-seqlens-k") && !flags.given("cu-seqlens-q")) {
    throw UsageError("--cu-seqlens-k: given without --cu-seqlens-q");
  }
  tilewise_problem options;
  tilewise_problem_init(&options);
  read_options(flags, options);
  const bool both = flags.given("cu-seqlens-q") && !flags.given("cu-seqlens-k");
  if (shape.batch > kMostSequences) {
    throw UsageError(
        fmt::format("--shape: B is {}, must be at most {} here", shape.batch, kMostSequences));
  }
  Mask mask;
  require(mask_of_documents(
      starts(flags, "cu-seqlens-q", shape.q_len, shape.batch),
      starts(flags, both ? "cu-seqlens-q" : "cu-seqlens-k", shape.k_len, shape.batch),
      {options.window_left, options.causal ? 0 : options.window_right,
       options.alignment == TILEWISE_TOP_LEFT},
      &mask));
  return mask;
}

}  // namespace tilewise::cli
