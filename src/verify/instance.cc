#include "verify/instance.h"

#include <algorithm>
#include <cstring>

#include "problem/tensors.h"
#include "verify/score_function.h"

namespace tilewise::verify {

using problem::dtype_size;

struct Instance::Rows {
  bool packed;
  std::int64_t batch;
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t width;
};

struct Instance::Strides {  // in elements
  std::int64_t batch;
  std::int64_t row;
  std::int64_t head;
  std::int64_t extent;  // elements from the first to one past the last
};

namespace {

constexpr std::int64_t kGuardBytes = 256;
constexpr std::int64_t kPaddedColumns = 3;
constexpr std::int64_t kMisalignment = 1;  // elements, of a padded tensor's base

}  // namespace

Instance::Instance(const Case& description) : case_(description) {
  tilewise_problem_init(&request_);
  set_options();
  case_.storage == Storage::kInterleaved ? add_interleaved() : add_rows();
  add_indices();
  add_page_table();
  add_score_inputs();
  add_descales();
  add_statistics();
  fill_inputs();
  poison_unused_pages();
}

void Instance::set_options() {
  const auto lengths = score_shape(case_);
  request_.layout = case_.layout;
  request_.causal = case_.causal ? 1 : 0;
  request_.alignment = case_.alignment;
  request_.deterministic = case_.deterministic ? 1 : 0;
  request_.batch_invariant = case_.batch_invariant ? 1 : 0;
  request_.window_left = case_.window_left;
  request_.window_right = case_.window_right;
  request_.softmax_scale = case_.scale;
  request_.softcap = case_.softcap;
  if (case_.score_function) request_.score_function = sample_score_function();
  request_.dropout_p = case_.dropout_p;
  request_.dropout_seed = case_.dropout_seed;
  request_.dropout_offset = case_.dropout_offset;
  if (case_.max_lengths_known && case_.slices.empty()) {
    if (case_.q_packed) request_.max_seqlen_q = lengths[2];
    if (case_.k_packed) request_.max_seqlen_k = lengths[3];
  }
}

std::int32_t Instance::q_dtype() const { return case_.q_dtype != 0 ? case_.q_dtype : case_.dtype; }
std::int32_t Instance::output_dtype() const {
  if (case_.output_dtype != 0) return case_.output_dtype;
  return problem::is_fp8(case_.dtype) ? std::int32_t{TILEWISE_BF16} : case_.dtype;
}

Instance::Rows Instance::query_rows(std::int64_t width) const {
  return {case_.q_packed, case_.batch, query_tokens(case_), case_.heads, width};
}
Instance::Rows Instance::key_rows(std::int64_t width) const {
  if (case_.page_size > 0)
    return {false, page_count(case_), case_.page_size, case_.kv_heads, width};
  return {case_.k_packed, case_.batch, key_tokens(case_), case_.kv_heads, width};
}

Instance::Strides Instance::strides(const Rows& rows, Storage storage) const {
  if (storage == Storage::kExpanded) return {0, rows.width, 0, rows.rows * rows.width};
  const std::int64_t pad = storage == Storage::kPadded ? kPaddedColumns : 0;
  const bool heads_first = case_.layout == TILEWISE_BHSD && !rows.packed;
  const std::int64_t width = rows.width + pad;
  Strides result = {};
  if (heads_first != (storage == Storage::kTransposed)) {
    result.row = width;
    result.head = rows.rows * width + pad;
    result.batch = rows.heads * result.head;
  } else {
    result.head = width;
    result.row = rows.heads * width + pad;
    result.batch = rows.rows * result.row;
  }
  result.extent = (rows.packed ? 1 : rows.batch) * result.batch;
  if (rows.packed) result.extent = std::max(rows.rows * result.row, rows.heads * result.head);
  return result;
}

tilewise_tensor Instance::row_tensor(const Rows& rows, const Strides& strides, std::int32_t dtype,
                                     std::byte* base) const {
  if (rows.packed) {
    const std::int64_t shape[] = {rows.rows, rows.heads, rows.width};
    tilewise_tensor tensor = tilewise_contiguous(base, dtype, 3, shape);
    tensor.strides[0] = strides.row;
    tensor.strides[1] = strides.head;
    return tensor;
  }
  const bool heads_first = case_.layout == TILEWISE_BHSD;
  const std::int64_t shape[] = {rows.batch, heads_first ? rows.heads : rows.rows,
                                heads_first ? rows.rows : rows.heads, rows.width};
  tilewise_tensor tensor = tilewise_contiguous(base, dtype, 4, shape);
  tensor.strides[0] = strides.batch;
  tensor.strides[1] = heads_first ? strides.head : strides.row;
  tensor.strides[2] = heads_first ? strides.row : strides.head;
  return tensor;
}

std::byte* Instance::add_region(std::int64_t bytes) {
  const std::size_t size = static_cast<std::size_t>(bytes + 2 * kGuardBytes);
  regions_.push_back(std::unique_ptr<Region>(new Region{Memory(size), {}, {}}));
  return regions_.back()->memory.data() + kGuardBytes;
}

void Instance::add_member(const char* name, Member member, const tilewise_tensor& tensor) {
  request_.*member = tensor;
  regions_.back()->tensors.emplace_back(name, member);
}

void Instance::add_row_tensor(const char* name, Member member, const Rows& rows,
                              std::int32_t dtype) {
  const bool is_key_input = member == &tilewise_problem::k || member == &tilewise_problem::v;
  Storage storage = case_.storage;
  if (storage == Storage::kExpanded && !is_key_input) storage = Storage::kContiguous;
  const Strides layout = strides(rows, storage);
  const std::int64_t skip = storage == Storage::kPadded ? kMisalignment : 0;
  std::byte* const base = add_region((layout.extent + skip) * dtype_size(dtype));
  add_member(name, member, row_tensor(rows, layout, dtype, base + skip * dtype_size(dtype)));
}

void Instance::add_rows() {
  const Rows query = query_rows(case_.head_dim);
  const Rows key = key_rows(case_.head_dim);
  const Rows value = key_rows(case_.value_dim);
  const Rows out = query_rows(case_.value_dim);
  add_row_tensor("q", &tilewise_problem::q, query, q_dtype());
  add_row_tensor("k", &tilewise_problem::k, key, case_.dtype);
  add_row_tensor("v", &tilewise_problem::v, value, case_.dtype);
  add_row_tensor("out", &tilewise_problem::out, out, output_dtype());
  if (case_.operation == Operation::kForward) return;
  add_row_tensor("dout", &tilewise_problem::dout, out, case_.dtype);
  if (case_.gradients & kDQ) add_row_tensor("dq", &tilewise_problem::dq, query, output_dtype());
  if (case_.gradients & kDK) add_row_tensor("dk", &tilewise_problem::dk, key, output_dtype());
  if (case_.gradients & kDV) add_row_tensor("dv", &tilewise_problem::dv, value, output_dtype());
}

// Allocates one buffer (tokens, H + 2 Hk, D) for q, k, v, and another one for dq, dk, dv. This
// needs Sq = Sk and D = Dv.
void Instance::add_interleaved() {
  const std::int64_t tokens = query_tokens(case_);
  const std::int64_t token = (case_.heads + 2 * case_.kv_heads) * case_.head_dim;
  const std::int64_t extent = (case_.q_packed ? 1 : case_.batch) * tokens * token;
  const Strides layout = {tokens * token, token, case_.head_dim, extent};
  const Rows query = query_rows(case_.head_dim);
  const Rows key = key_rows(case_.head_dim);
  const struct {
    const char* name;
    Member member;
    const Rows& rows;
    std::int64_t first_head;
    unsigned gradient;  // 0 for an input
  } parts[] = {{"q", &tilewise_problem::q, query, 0, 0},
               {"k", &tilewise_problem::k, key, case_.heads, 0},
               {"v", &tilewise_problem::v, key, case_.heads + case_.kv_heads, 0},
               {"dq", &tilewise_problem::dq, query, 0, kDQ},
               {"dk", &tilewise_problem::dk, key, case_.heads, kDK},
               {"dv", &tilewise_problem::dv, key, case_.heads + case_.kv_heads, kDV}};
  for (const bool gradients : {false, true}) {
    if (gradients && case_.operation == Operation::kForward) break;
    const std::int32_t dtype = gradients ? output_dtype() : case_.dtype;
    std::byte* const base = add_region(extent * dtype_size(dtype));
    for (const auto& part : parts) {
      if (gradients ? !(case_.gradients & part.gradient) : part.gradient != 0) continue;
      std::byte* const first = base + part.first_head * case_.head_dim * dtype_size(dtype);
      add_member(part.name, part.member, row_tensor(part.rows, layout, dtype, first));
    }
  }
  const Rows out = query_rows(case_.value_dim);
  add_row_tensor("out", &tilewise_problem::out, out, output_dtype());
  if (case_.operation == Operation::kForward) return;
  add_row_tensor("dout", &tilewise_problem::dout, out, case_.dtype);
}

void Instance::add_contiguous(const char* name, Member member, std::int32_t dtype,
                              const std::vector<std::int64_t>& shape) {
  tilewise_tensor tensor =
      tilewise_contiguous(nullptr, dtype, static_cast<std::int32_t>(shape.size()), shape.data());
  tensor.data = add_region(element_count(tensor) * dtype_size(dtype));
  add_member(name, member, tensor);
}

void Instance::add_list(const char* name, Member member, const std::vector<std::int64_t>& numbers,
                        const std::vector<std::int64_t>& shape, bool wide) {
  add_contiguous(name, member, wide ? TILEWISE_INT64 : TILEWISE_INT32, shape);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (wide) {
      static_cast<std::int64_t*>((request_.*member).data)[i] = numbers[i];
    } else {
      static_cast<std::int32_t*>((request_.*member).data)[i] =
          static_cast<std::int32_t>(numbers[i]);
    }
  }
}

void Instance::add_indices() {
  const struct {
    const char* name;
    Member member;
    bool packed;
    const std::vector<std::int64_t>& lengths;
  } sides[] = {{"cu_seqlens_q", &tilewise_problem::cu_seqlens_q, case_.q_packed, case_.q_lengths},
               {"cu_seqlens_k", &tilewise_problem::cu_seqlens_k, case_.k_packed, case_.k_lengths}};
  for (const auto& side : sides) {
    if (!side.packed || !case_.slices.empty()) continue;
    std::vector<std::int64_t> starts = {case_.unowned};
    for (const std::int64_t length : side.lengths) starts.push_back(starts.back() + length);
    const std::int64_t count = static_cast<std::int64_t>(starts.size());
    add_list(side.name, side.member, starts, {count}, case_.wide_indices);
  }
  const struct {
    const char* name;
    Member member;
    const std::vector<std::int64_t>& used;
  } cuts[] = {{"seqused_q", &tilewise_problem::seqused_q, case_.used_q},
              {"seqused_k", &tilewise_problem::seqused_k, case_.used}};
  for (const auto& cut : cuts) {
    const std::int64_t count = static_cast<std::int64_t>(cut.used.size());
    if (count > 0) add_list(cut.name, cut.member, cut.used, {count}, case_.wide_indices);
  }
  if (!case_.slices.empty()) {
    const std::int64_t columns = case_.slice_heads ? 6 : 5;
    std::vector<std::int64_t> numbers;
    for (const Slice& slice : case_.slices) {
      numbers.insert(numbers.end(), slice.begin(), slice.begin() + columns);
    }
    const std::int64_t count = static_cast<std::int64_t>(case_.slices.size());
    add_list("slices", &tilewise_problem::slices, numbers, {count, columns}, true);
  }
}

void Instance::add_score_tensor(const char* name, Member member, const ScoreTensor& description,
                                std::int32_t dtype) {
  const auto full = score_shape(case_);
  std::vector<std::int64_t> shape;
  for (std::size_t d = static_cast<std::size_t>(4 - description.rank); d < 4; ++d) {
    shape.push_back(description.full[d] ? full[d] : 1);
  }
  add_contiguous(name, member, dtype, shape);
}

void Instance::add_score_inputs() {
  const std::int32_t narrow = problem::is_fp8(q_dtype()) ? std::int32_t{TILEWISE_BF16} : q_dtype();
  const std::int32_t bias_dtype = case_.bias_fp32 ? std::int32_t{TILEWISE_FP32} : narrow;
  if (case_.mask.present) {
    add_score_tensor("mask", &tilewise_problem::mask, case_.mask, TILEWISE_BOOL);
  }
  if (case_.bias.present) {
    add_score_tensor("bias", &tilewise_problem::bias, case_.bias, bias_dtype);
  }
  if (case_.alibi) {
    std::vector<std::int64_t> shape = {case_.heads};
    if (case_.alibi_per_batch) shape.insert(shape.begin(), case_.batch);
    add_contiguous("alibi_slopes", &tilewise_problem::alibi_slopes, TILEWISE_FP32, shape);
  }
  if (case_.sink) add_contiguous("sink", &tilewise_problem::sink, TILEWISE_FP32, {case_.heads});
  if (case_.operation == Operation::kForward) {
    if (case_.phi.empty()) return;
    add_contiguous("phi", &tilewise_problem::phi, TILEWISE_FP32,
                   {static_cast<std::int64_t>(case_.phi.size())});
    return add_contiguous("phi_fallbacks", &tilewise_problem::phi_fallbacks, TILEWISE_INT64, {1});
  }
  if (case_.bias.present && (case_.gradients & kDBias)) {
    add_score_tensor("dbias", &tilewise_problem::dbias, case_.bias, bias_dtype);
  }
  if (case_.alibi && (case_.gradients & kDAlibiSlopes)) {
    const tilewise_tensor& slopes = request_.alibi_slopes;
    add_contiguous("dalibi_slopes", &tilewise_problem::dalibi_slopes, TILEWISE_FP32,
                   {slopes.shape, slopes.shape + slopes.rank});
  }
  if (case_.sink && (case_.gradients & kDSink)) {
    add_contiguous("dsink", &tilewise_problem::dsink, TILEWISE_FP32, {case_.heads});
  }
}

void Instance::add_statistics() {
  const std::int32_t dtype = case_.dtype == TILEWISE_FP64 ? TILEWISE_FP64 : TILEWISE_FP32;
  std::vector<std::int64_t> shape = {case_.heads, query_tokens(case_)};
  if (!case_.q_packed) shape.insert(shape.begin(), case_.batch);
  const bool backward = case_.operation == Operation::kBackward;
  if (case_.lse || backward) add_contiguous("lse", &tilewise_problem::lse, dtype, shape);
  if (case_.dlse && backward) add_contiguous("dlse", &tilewise_problem::dlse, dtype, shape);
}

void Instance::set_forward_results(const tilewise_problem& results) {
  for (const Member member : {&tilewise_problem::out, &tilewise_problem::lse}) {
    const tilewise_tensor& from = results.*member;
    std::vector<double> numbers;
    for_each_element(from, [&](std::int64_t, std::int64_t offset) {
      numbers.push_back(read_element(from, offset));
    });
    for_each_element(request_.*member, [&](std::int64_t i, std::int64_t offset) {
      write_element(request_.*member, offset, numbers[static_cast<std::size_t>(i)]);
    });
  }
}

namespace {

problem::Role role_of(const char* name, Operation operation) {
  for (const problem::NamedTensor& tensor : problem::kTensors) {
    if (std::strcmp(tensor.name, name) == 0) return tensor.role(operation);
  }
  return problem::Role::kUnused;
}

}  // namespace

void Instance::prepare(Operation operation) {
  for (const auto& region : regions_) {
    for (const auto& [name, member] : region->tensors) {
      if (role_of(name, operation) == problem::Role::kOutput) poison(request_.*member);
    }
    const std::byte* const data = region->memory.data();
    region->before.assign(data, data + region->memory.bytes());
  }
}

std::string Instance::damage(Operation operation) {
  for (const auto& region : regions_) {
    std::string names;
    for (const auto& [name, member] : region->tensors) {
      names += (names.empty() ? "" : ", ") + std::string(name);
      if (!problem::is_written(role_of(name, operation))) continue;
      const tilewise_tensor& tensor = request_.*member;
      const std::int64_t size = dtype_size(tensor.dtype);
      const std::ptrdiff_t base = static_cast<std::byte*>(tensor.data) - region->memory.data();
      for_each_element(tensor, [&](std::int64_t, std::int64_t offset) {
        const std::ptrdiff_t at = base + offset * size;
        std::memcpy(region->before.data() + at, region->memory.data() + at,
                    static_cast<std::size_t>(size));
      });
    }
    if (std::memcmp(region->before.data(), region->memory.data(), region->memory.bytes()) != 0) {
      return "memory of or around " + names + " was overwritten";
    }
  }
  return "";
}

}  // namespace tilewise::verify
