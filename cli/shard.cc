#include "shard.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "problem/tensors.h"
#include "verify/tensor.h"

namespace tilewise::cli {
namespace {

using problem::Operation;
using problem::present;

int row_dimension(const tilewise_tensor& tensor, std::int32_t layout) {
  if (tensor.rank == 3) return 0;
  return layout == TILEWISE_BHSD ? 2 : 1;
}

// Copies an element, rounded if the dtypes differ.
void copy_element(const tilewise_tensor& from, std::int64_t at, const tilewise_tensor& to,
                  std::int64_t to_at) {
  if (from.dtype != to.dtype)
    return verify::write_element(to, to_at, verify::read_element(from, at));
  const std::int64_t size = problem::dtype_size(from.dtype);
  std::memcpy(static_cast<char*>(to.data) + to_at * size,
              static_cast<const char*>(from.data) + at * size, static_cast<std::size_t>(size));
}

// Calls function(offset in the part, offset in the whole) for every element of a part, whose index
// in one dimension is that of a token.
template <class Function>
void for_each_pair(const tilewise_tensor& part, const tilewise_tensor& whole, int dimension,
                   const std::vector<std::int64_t>& tokens, Function function) {
  std::int64_t index[TILEWISE_MAX_RANK] = {0, 0, 0, 0};
  verify::for_each_element(part, [&](std::int64_t, std::int64_t offset) {
    std::int64_t at = 0;
    for (int d = 0; d < part.rank; ++d) {
      at += whole.strides[d] *
            (d == dimension ? tokens[static_cast<std::size_t>(index[d])] : index[d]);
    }
    function(offset, at);
    for (int d = part.rank - 1; d >= 0 && ++index[d] == part.shape[d]; --d) index[d] = 0;
  });
}

bool is_output(Operation operation, tilewise_tensor tilewise_problem::*member) {
  return std::any_of(std::begin(problem::kTensors), std::end(problem::kTensors),
                     [&](const problem::NamedTensor& named) {
                       return named.member == member &&
                              named.role(operation) == problem::Role::kOutput;
                     });
}

}  // namespace

std::int64_t query_rows(const tilewise_problem& problem) {
  return problem.q.shape[row_dimension(problem.q, problem.layout)];
}
std::int64_t key_rows(const tilewise_problem& problem) {
  return problem.k.shape[row_dimension(problem.k, problem.layout)];
}

void Shard::find_parts() {
  using P = tilewise_problem;
  const auto add = [&](Member member, int dimension, bool of_keys) {
    if (present(problem_.*member)) parts_.push_back({member, dimension, of_keys});
  };
  for (const Member member : {&P::q, &P::out, &P::dout, &P::dq})
    add(member, row_dimension(problem_.*member, problem_.layout), false);
  for (const Member member : {&P::k, &P::v, &P::dk, &P::dv})
    add(member, row_dimension(problem_.*member, problem_.layout), true);
  for (const Member member : {&P::lse, &P::dlse}) add(member, (problem_.*member).rank - 1, false);
  for (const Member member : {&P::bias, &P::mask, &P::dbias}) {
    const tilewise_tensor& tensor = problem_.*member;
    const bool has_rows = tensor.rank >= 2 && tensor.shape[tensor.rank - 2] != 1;
    add(member, has_rows ? tensor.rank - 2 : -1, false);
  }
  for (const Member member : {&P::dsink, &P::dalibi_slopes}) add(member, -1, false);
}

void Shard::cut(const tilewise_problem& whole, const Part& part) {
  const tilewise_tensor& tensor = whole.*part.member;
  std::int64_t shape[TILEWISE_MAX_RANK];
  std::copy(tensor.shape, tensor.shape + tensor.rank, shape);
  if (part.dimension >= 0) shape[part.dimension] = static_cast<std::int64_t>(tokens(part).size());
  std::int32_t dtype = tensor.dtype;
  if (part.member == &tilewise_problem::dbias)  // a sum
    dtype = whole.q.dtype == TILEWISE_FP64 ? TILEWISE_FP64 : TILEWISE_FP32;
  tilewise_tensor own = tilewise_contiguous(nullptr, dtype, tensor.rank, shape);
  memory_.emplace_back(
      static_cast<std::size_t>(verify::element_count(own) * problem::dtype_size(dtype)));
  own.data = memory_.back().data();
  for_each_pair(
      own, tensor, part.dimension, tokens(part),
      [&](std::int64_t at, std::int64_t whole_at) { copy_element(tensor, whole_at, own, at); });
  problem_.*part.member = own;
}

Shard::Shard(const tilewise_problem& whole, Tokens tokens)
    : problem_(whole), tokens_(std::move(tokens)) {
  find_parts();
  for (const Part& part : parts_) cut(whole, part);
}

std::vector<tilewise_message> Shard::output_messages(Operation operation, std::int32_t peer) {
  std::vector<tilewise_message> messages;
  for (const Part& part : parts_) {
    if (!is_output(operation, part.member) || part.dimension < 0) continue;
    const tilewise_tensor& tensor = problem_.*part.member;
    messages.push_back({tensor.data,
                        verify::element_count(tensor) * problem::dtype_size(tensor.dtype), peer,
                        static_cast<std::int32_t>(messages.size())});
  }
  return messages;
}

void Shard::put(Operation operation, const tilewise_problem& whole) const {
  for (const Part& part : parts_) {
    if (!is_output(operation, part.member)) continue;
    const tilewise_tensor& own = problem_.*part.member;
    const tilewise_tensor& tensor = whole.*part.member;
    for_each_pair(
        own, tensor, part.dimension, tokens(part),
        [&](std::int64_t at, std::int64_t whole_at) { copy_element(own, at, tensor, whole_at); });
  }
}

}  // namespace tilewise::cli
