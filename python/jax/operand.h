// The operands of a call under vmap, which adds mapped dimensions before those of a problem's
// tensors.
#pragma once

#include <tilewise/tilewise.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tilewise::python {

struct Field {
  std::string_view name;
  tilewise_tensor tilewise_problem::*tensor;
  std::int32_t rank;  // with the batch as first dimension; 0 if it has none
  bool has_lower_ranks = false;
  bool broadcasts = false;  // a batch of 1 is broadcast
};
inline constexpr Field kFields[] = {
    {"q", &tilewise_problem::q, 4},
    {"k", &tilewise_problem::k, 4},
    {"v", &tilewise_problem::v, 4},
    {"out", &tilewise_problem::out, 4},
    {"lse", &tilewise_problem::lse, 3},
    {"dout", &tilewise_problem::dout, 4},
    {"dlse", &tilewise_problem::dlse, 3},
    {"dq", &tilewise_problem::dq, 4},
    {"dk", &tilewise_problem::dk, 4},
    {"dv", &tilewise_problem::dv, 4},
    {"dbias", &tilewise_problem::dbias, 4, true, true},
    {"dsink", &tilewise_problem::dsink, 0},
    {"dalibi_slopes", &tilewise_problem::dalibi_slopes, 2, true},
    {"mask", &tilewise_problem::mask, 4, true, true},
    {"bias", &tilewise_problem::bias, 4, true, true},
    {"alibi_slopes", &tilewise_problem::alibi_slopes, 2, true},
    {"sink", &tilewise_problem::sink, 0},
    {"slices", &tilewise_problem::slices, 0},
    {"cu_seqlens_q", &tilewise_problem::cu_seqlens_q, 0},
    {"cu_seqlens_k", &tilewise_problem::cu_seqlens_k, 0},
    {"seqused_q", &tilewise_problem::seqused_q, 1},
    {"seqused_k", &tilewise_problem::seqused_k, 1},
};

// An operand: its tensor for the first index of the mapped dimensions, and the distances to the
// others.
struct Operand {
  const Field* field;
  tilewise_tensor tensor;
  std::vector<std::int64_t> mapped;  // sizes of the mapped dimensions
  std::size_t bytes;                 // of the tensor of one problem

  char* data() const { return static_cast<char*>(tensor.data); }
  // Returns the offset of an index. Mapped dimensions of size 1 do not move.
  std::size_t offset(const std::vector<std::int64_t>& index) const {
    std::int64_t place = 0;
    for (std::size_t d = 0; d < mapped.size(); ++d)
      place = place * mapped[d] + (mapped[d] == 1 ? 0 : index[d]);
    return static_cast<std::size_t>(place) * bytes;
  }
  bool is_the_same_for_all() const {
    return std::all_of(mapped.begin(), mapped.end(), [](std::int64_t size) { return size == 1; });
  }
};

// Returns the tensor of an operand in one problem that combines `count` problems of `batch`
// sequences each: sequence b of problem i becomes i * batch + b. Returns nothing if there is no
// such tensor.
inline std::optional<tilewise_tensor> folded(const Operand& operand, std::int64_t batch,
                                             std::int64_t count) {
  const Field& field = *operand.field;
  tilewise_tensor tensor = operand.tensor;
  const bool has_batch = tensor.rank == field.rank;
  if (operand.is_the_same_for_all()) {
    if (!has_batch || (field.broadcasts && tensor.shape[0] == 1)) return tensor;
    if (batch != 1) return std::nullopt;
    tensor.shape[0] = count;
    tensor.strides[0] = 0;
    return tensor;
  }
  if (has_batch && tensor.shape[0] == batch) {
    tensor.shape[0] *= count;
    return tensor;
  }
  if (has_batch || !field.has_lower_ranks || batch != 1) return std::nullopt;
  std::int64_t shape[TILEWISE_MAX_RANK] = {1, 1, 1, 1};
  shape[0] = count;
  std::copy_n(tensor.shape, tensor.rank, shape + field.rank - tensor.rank);
  tilewise_tensor raised = tilewise_contiguous(tensor.data, tensor.dtype, field.rank, shape);
  raised.device = tensor.device;
  raised.device_index = tensor.device_index;
  return raised;
}

// Sets the tensors of `problem` to those of all `count` problems, which the mapped dimensions
// `sizes` make. Returns false if the problems must run one after another: packed batches, dropout
// (whose pattern depends on the batch), operands that some of the dimensions share, and gradients
// that would be summed over the problems.
inline bool fold(const std::vector<Operand>& operands, const std::vector<std::int64_t>& sizes,
                 std::int64_t count, tilewise_problem* problem) {
  const std::int64_t batch = operands[0].tensor.shape[0];  // of q
  if (problem->dropout_p > 0 || operands[0].tensor.rank != 4) return false;
  bool has_own_bias = false;
  bool has_own_slopes = false;
  for (const Operand& operand : operands) {
    const bool is_shared = operand.is_the_same_for_all();
    const auto is = [&](auto field) { return operand.field->tensor == field; };
    if (!is_shared && operand.mapped != sizes) return false;
    if (is(&tilewise_problem::bias)) has_own_bias = !is_shared;
    if (is(&tilewise_problem::alibi_slopes)) has_own_slopes = !is_shared;
    if (is(&tilewise_problem::dbias) && !has_own_bias) return false;  // bias came before
    if (is(&tilewise_problem::dalibi_slopes) && !has_own_slopes) return false;
    if (is(&tilewise_problem::cu_seqlens_q) || is(&tilewise_problem::cu_seqlens_k)) return false;
    const std::optional<tilewise_tensor> tensor = folded(operand, batch, count);
    if (!tensor) return false;
    problem->*operand.field->tensor = *tensor;
  }
  return true;
}

}  // namespace tilewise::python
