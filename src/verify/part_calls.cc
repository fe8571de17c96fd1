#include "verify/part_calls.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "problem/status.h"
#include "problem/tensors.h"
#include "problem/validate.h"
#include "verify/random.h"
#include "verify/tensor.h"

namespace tilewise::verify {
namespace {

using math::KeyRange;
using Member = tilewise_tensor tilewise_problem::*;

std::vector<KeyRange> pieces(const std::vector<std::int64_t>& cuts, std::int64_t length) {
  std::vector<KeyRange> result;
  std::int64_t begin = 0;
  for (const std::int64_t cut : cuts) {
    const std::int64_t end = std::clamp(cut, begin, length);
    result.push_back({begin, end});
    begin = end;
  }
  result.push_back({begin, length});
  return result;
}

// Cuts a tensor to the indices `range` of a dimension.
void cut(tilewise_tensor& tensor, int dimension, KeyRange range) {
  if (tensor.rank == 0) return;
  tensor.data = static_cast<char*>(tensor.data) +
                range.begin * tensor.strides[dimension] * problem::dtype_size(tensor.dtype);
  tensor.shape[dimension] = range.end - range.begin;
}

// The same for a mask or a bias, in which a dimension of size 1 broadcasts.
void cut_scores(tilewise_tensor& tensor, int dimension, KeyRange range) {
  if (dimension >= 0 && tensor.shape[dimension] != 1) cut(tensor, dimension, range);
}

// The sizes of the part of each sequence that a range of its places selects.
struct SidePart {
  std::vector<std::int64_t> starts;   // (B + 1), of a packed side
  std::vector<std::int64_t> lengths;  // (B)
};
SidePart side_part(const std::vector<problem::Sequence>& sequences,
                   std::int64_t problem::Sequence::*start, std::int64_t problem::Sequence::*length,
                   KeyRange range) {
  SidePart part;
  std::int64_t end = 0;
  for (const problem::Sequence& sequence : sequences) {
    const std::int64_t from = std::min(range.begin, sequence.*length);
    part.starts.push_back(sequence.*start + from);
    part.lengths.push_back(std::min(range.end, sequence.*length) - from);
    end = part.starts.back() + part.lengths.back();
  }
  part.starts.push_back(end);
  return part;
}

}  // namespace

PartCalls::PartCalls(problem::Operation operation, const tilewise_problem& whole,
                     const std::vector<std::int64_t>& q_cuts,
                     const std::vector<std::int64_t>& k_cuts, std::uint64_t seed)
    : operation_(operation), whole_(whole) {
  if (problem::make_problem(operation, whole, &problem_) != TILEWISE_OK)
    throw std::runtime_error(problem::message());
  sequences_.resize(static_cast<std::size_t>(problem_.batch));
  problem::fill_sequences(problem_, sequences_.data());
  const std::vector<KeyRange> keys = pieces(k_cuts, problem_.max_k);
  Random random(seed);
  for (const KeyRange rows : pieces(q_cuts, problem_.max_q)) {
    const std::int64_t with_sink = random.between(0, static_cast<std::int64_t>(keys.size()) - 1);
    for (std::size_t i = 0; i < keys.size(); ++i)
      add_call(rows, keys[i], static_cast<std::int64_t>(i) == with_sink);
  }
  for (std::size_t i = calls_.size(); i > 1; --i) {
    const std::int64_t other = random.between(0, static_cast<std::int64_t>(i) - 1);
    std::swap(calls_[i - 1], calls_[static_cast<std::size_t>(other)]);
  }
}

tilewise_tensor PartCalls::list(const std::vector<std::int64_t>& numbers, std::int64_t columns) {
  numbers_.push_back(numbers);
  const std::int64_t shape[] = {static_cast<std::int64_t>(numbers.size()) / columns, columns};
  return tilewise_contiguous(numbers_.back().data(), TILEWISE_INT64, columns == 1 ? 1 : 2, shape);
}

void PartCalls::add_call(KeyRange rows, KeyRange keys, bool has_sink) {
  using problem::Sequence;
  tilewise_problem call = whole_;
  call.accumulate = 1;
  const SidePart q = side_part(sequences_, &Sequence::q_start, &Sequence::q_len, rows);
  const SidePart k = side_part(sequences_, &Sequence::k_start, &Sequence::k_len, keys);
  const int row_dimension = whole_.layout == TILEWISE_BHSD ? 2 : 1;
  if (problem_.q_packed) {
    call.cu_seqlens_q = list(q.starts, 1);
    call.max_seqlen_q = rows.end - rows.begin;
  } else {
    for (const Member member : {&tilewise_problem::q, &tilewise_problem::out,
                                &tilewise_problem::dout, &tilewise_problem::dq})
      cut(call.*member, row_dimension, rows);
    for (const Member member : {&tilewise_problem::lse, &tilewise_problem::dlse})
      cut(call.*member, 2, rows);
  }
  if (problem_.q_packed || problem_.seqused_q.present()) call.seqused_q = list(q.lengths, 1);
  if (problem_.k_packed) {
    call.cu_seqlens_k = list(k.starts, 1);
    call.max_seqlen_k = keys.end - keys.begin;
  } else {
    for (const Member member :
         {&tilewise_problem::k, &tilewise_problem::v, &tilewise_problem::dk, &tilewise_problem::dv})
      cut(call.*member, row_dimension, keys);
  }
  if (problem_.k_packed || problem_.seqused_k.present()) call.seqused_k = list(k.lengths, 1);
  for (const Member member :
       {&tilewise_problem::mask, &tilewise_problem::bias, &tilewise_problem::dbias}) {
    tilewise_tensor& tensor = call.*member;
    cut_scores(tensor, tensor.rank - 2, rows);
    cut_scores(tensor, tensor.rank - 1, keys);
  }
  if (!has_sink) call.sink = call.dsink = {};
  std::vector<std::int64_t> parts;
  for (const Sequence& sequence : sequences_)
    parts.insert(parts.end(), {sequence.batch, rows.begin, keys.begin, sequence.diagonal});
  call.parts = list(parts, 4);
  calls_.push_back(call);
}

void PartCalls::start() const {
  for (const problem::NamedTensor& named : problem::kTensors) {
    if (named.role(operation_) != problem::Role::kOutput) continue;
    if (named.member == &tilewise_problem::out) continue;
    const tilewise_tensor& tensor = whole_.*named.member;
    const bool is_lse = named.member == &tilewise_problem::lse;
    const double first = is_lse ? -std::numeric_limits<double>::infinity() : 0;
    for_each_element(
        tensor, [&](std::int64_t, std::int64_t offset) { write_element(tensor, offset, first); });
  }
}

}  // namespace tilewise::verify
