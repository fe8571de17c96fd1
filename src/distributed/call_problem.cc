#include "distributed/call_problem.h"

#include "problem/tensors.h"

namespace tilewise::distributed {
namespace {

using problem::present;

constexpr tilewise_tensor kAbsent = {};

tilewise_tensor contiguous(void* data, std::int32_t dtype, int rank, const std::int64_t* shape) {
  tilewise_tensor tensor = {};
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = rank;
  std::int64_t stride = 1;
  for (int d = rank - 1; d >= 0; --d) {
    tensor.shape[d] = shape[d];
    tensor.strides[d] = stride;
    stride *= math::max(shape[d], 1);
  }
  return tensor;
}

// Returns the sum of which a tensor of the request is the result: the tensor itself if it has the
// dtype of sums.
tilewise_tensor sum_of(const RingPlan& plan, const tilewise_tensor& tensor, void* data) {
  const std::int32_t dtype = plan.local.statistics;
  if (!present(tensor) || tensor.dtype == dtype) return tensor;
  return contiguous(data, dtype, tensor.rank, tensor.shape);
}

// The lists of all calls: the plan's, or their copy on a device.
std::int64_t* lists_of(const RingPlan& plan, const RingArrays& arrays) {
  if (plan.on_device()) return static_cast<std::int64_t*>(arrays.at(plan.memory.lists));
  return const_cast<std::int64_t*>(plan.lists.data());
}

// A list, or rows of four numbers.
tilewise_tensor list_of(std::int64_t* lists, std::int64_t begin, std::int64_t count,
                        std::int64_t columns = 1) {
  if (begin < 0) return kAbsent;
  const std::int64_t shape[] = {count, columns};
  return contiguous(lists != nullptr ? lists + begin : nullptr, TILEWISE_INT64, columns > 1 ? 2 : 1,
                    shape);
}

// Returns a part of a bias, mask or dbias: a row for each query of the range and a column for each
// key of the piece, where it does not broadcast.
tilewise_tensor score_part(const tilewise_tensor& tensor, std::int64_t first_row, std::int64_t rows,
                           const TokenRange& keys) {
  tilewise_tensor part = tensor;
  if (!present(part)) return part;
  if (part.rank >= 2 && part.shape[part.rank - 2] != 1)
    part = slice(part, part.rank - 2, first_row, rows);
  if (part.shape[part.rank - 1] != 1)
    part = slice(part, part.rank - 1, keys.begin, keys.rows(), keys.stride);
  return part;
}

// A problem with the options of the request, which accumulates unless the call begins a result.
tilewise_problem blank(const RingPlan& plan, const tilewise_problem& request,
                       const RingArrays& arrays, const Call& call) {
  tilewise_problem problem = request;
  problem.accumulate = call.begins ? 0 : 1;
  problem.alignment = TILEWISE_TOP_LEFT;
  problem.causal = 0;
  problem.window_left = call.window_left;
  problem.window_right = call.window_right;
  problem.max_seqlen_q = problem.max_seqlen_k = -1;
  std::int64_t* const lists = lists_of(plan, arrays);
  problem.parts = list_of(lists, call.parts, call.sequences, 4);
  problem.cu_seqlens_q = list_of(lists, call.cu_seqlens_q, call.sequences + 1);
  problem.cu_seqlens_k = list_of(lists, call.cu_seqlens_k, call.sequences + 1);
  problem.seqused_q = list_of(lists, call.seqused_q, call.sequences);
  problem.seqused_k = list_of(lists, call.seqused_k, call.sequences);
  return problem;
}

void set_queries(const RingPlan& plan, const Sums& sums, const Call& call,
                 tilewise_problem& problem) {
  const std::int64_t first = plan.queries.rows_before(call.query_range);
  const std::int64_t rows = plan.query_rows(call);
  if (!plan.backward()) {
    problem.out = sums.out;
    problem.lse = sums.lse;
  }
  problem.dq = sums.dq;
  for (const auto member : {&tilewise_problem::q, &tilewise_problem::out, &tilewise_problem::dout,
                            &tilewise_problem::dq}) {
    tilewise_tensor& tensor = problem.*member;
    if (present(tensor)) tensor = slice(tensor, row_dimension(tensor, problem.layout), first, rows);
  }
  for (const auto member : {&tilewise_problem::lse, &tilewise_problem::dlse}) {
    tilewise_tensor& tensor = problem.*member;
    if (present(tensor)) tensor = slice(tensor, tensor.rank - 1, first, rows);
  }
}

// The keys of step 0 are the rank's own tensors, those of other steps lie in the workspace.
void set_keys(const RingPlan& plan, const RingArrays& arrays, const Sums& sums, std::size_t number,
              const Call& call, tilewise_problem& problem) {
  const Step& step = plan.steps[number];
  const Piece& piece = step.pieces.pieces[static_cast<std::size_t>(call.piece)];
  std::int64_t first = step.pieces.rows_before(&piece);
  std::int64_t rows_of_call = 0;
  for (std::int32_t p = 0; p < call.pieces; ++p) rows_of_call += (&piece + p)->count();
  if (number == 0) {
    problem.dk = sums.dk;
    problem.dv = sums.dv;
  } else {
    const Buffer keys = number % 2 == 0 ? Buffer::kKeys0 : Buffer::kKeys1;
    const Buffer gradients = number % 2 == 0 ? Buffer::kGradients0 : Buffer::kGradients1;
    const Record record = record_of(plan);
    const std::int64_t rows = step.pieces.rows();
    void* const array = array_of(plan, arrays, keys);
    void* const sum = array_of(plan, arrays, gradients);
    const auto view = [&](void* data, std::int32_t dtype, const Columns& columns) {
      return rows_of_array(plan, problem.layout, data, dtype, columns, rows);
    };
    problem.k = view(array, plan.local.dtype, record.k);
    problem.v = view(array, plan.local.dtype, record.v);
    if (present(problem.dk)) problem.dk = view(sum, plan.local.statistics, record.dk);
    if (present(problem.dv)) problem.dv = view(sum, plan.local.statistics, record.dv);
  }
  for (const auto member :
       {&tilewise_problem::k, &tilewise_problem::v, &tilewise_problem::dk, &tilewise_problem::dv}) {
    tilewise_tensor& tensor = problem.*member;
    if (!present(tensor)) continue;
    tensor = slice(tensor, row_dimension(tensor, problem.layout), first, rows_of_call);
  }
}

void set_score_inputs(const RingPlan& plan, const Sums& sums, const Step& step, const Call& call,
                      tilewise_problem& problem) {
  const Piece& piece = step.pieces.pieces[static_cast<std::size_t>(call.piece)];
  const TokenRange range =
      plan.ring().keys(step.owner).ranges[static_cast<std::size_t>(piece.range)];
  const TokenRange keys = {range.begin + piece.rows.begin * range.stride,
                           range.begin + piece.rows.end * range.stride, range.stride};
  const std::int64_t first = plan.queries.rows_before(call.query_range);
  const std::int64_t rows = plan.queries.ranges[static_cast<std::size_t>(call.query_range)].rows();
  for (const auto member :
       {&tilewise_problem::bias, &tilewise_problem::mask, &tilewise_problem::dbias})
    problem.*member = score_part(problem.*member, first, rows, keys);
  problem.dsink = sums.dsink;
  problem.dalibi_slopes = sums.dalibi_slopes;
  if (!call.with_sink) problem.sink = problem.dsink = kAbsent;
  for (const auto member : {&tilewise_problem::alibi_slopes, &tilewise_problem::dalibi_slopes}) {
    tilewise_tensor& tensor = problem.*member;  // (H) or (B, H)
    if (tensor.rank == 2) tensor = slice(tensor, 0, call.first_sequence, call.sequences);
  }
}

}  // namespace

tilewise_tensor slice(const tilewise_tensor& tensor, int dimension, std::int64_t first,
                      std::int64_t count, std::int64_t stride) {
  tilewise_tensor part = tensor;
  if (tensor.data != nullptr) {
    part.data = static_cast<char*>(tensor.data) +
                first * tensor.strides[dimension] * problem::dtype_size(tensor.dtype);
  }
  part.shape[dimension] = count;
  part.strides[dimension] *= stride;
  return part;
}

void* array_of(const RingPlan& plan, const RingArrays& arrays, Buffer buffer) {
  const RingMemory& memory = plan.memory;
  switch (buffer) {
    case Buffer::kOwnKeys:
      return arrays.at(memory.own_keys);
    case Buffer::kKeys0:
      return arrays.at(memory.keys[0]);
    case Buffer::kKeys1:
      return arrays.at(memory.keys[1]);
    case Buffer::kGradients0:
      return arrays.at(memory.gradients[0]);
    case Buffer::kGradients1:
      return arrays.at(memory.gradients[1]);
    case Buffer::kPartial:
      return arrays.at(memory.partial);
    case Buffer::kHome:
      return arrays.at(memory.home);
  }
  return nullptr;
}

Sums sums_of(const RingPlan& plan, const tilewise_problem& request, const RingArrays& arrays) {
  const RingMemory& memory = plan.memory;
  Sums sums = {};
  if (!plan.backward()) {
    sums.out = sum_of(plan, request.out, arrays.at(memory.out));
    sums.lse = request.lse;
    if (!present(request.lse)) {
      const std::int64_t shape[] = {plan.local.batch, plan.local.heads, plan.local.q_rows};
      const bool packed = plan.local.q_packed;
      sums.lse = contiguous(arrays.at(memory.lse), plan.local.statistics, packed ? 2 : 3,
                            packed ? shape + 1 : shape);
    }
    return sums;
  }
  sums.dq = sum_of(plan, request.dq, arrays.at(memory.dq));
  sums.dk = sum_of(plan, request.dk, arrays.at(memory.dk));
  sums.dv = sum_of(plan, request.dv, arrays.at(memory.dv));
  const std::int64_t element = problem::dtype_size(plan.local.statistics);
  const std::int64_t own = plan.rank * (plan.sink_count() + plan.slope_count()) * element;
  const auto head_sum = [&](const tilewise_tensor& tensor, std::int64_t first) {
    if (!present(tensor)) return tensor;
    return contiguous(arrays.at(memory.head_sums + own + first * element), plan.local.statistics,
                      tensor.rank, tensor.shape);
  };
  sums.dsink = head_sum(request.dsink, 0);
  sums.dalibi_slopes = head_sum(request.dalibi_slopes, plan.sink_count());
  return sums;
}

tilewise_tensor rows_of_array(const RingPlan& plan, std::int32_t layout, void* array,
                              std::int32_t dtype, const Columns& columns, std::int64_t rows) {
  const std::int64_t heads = plan.local.kv_heads;
  tilewise_tensor tensor = {};
  if (array != nullptr)
    tensor.data = static_cast<char*>(array) + columns.first * problem::dtype_size(dtype);
  tensor.dtype = dtype;
  tensor.rank = plan.local.k_packed ? 3 : 4;
  const auto set = [&](int dimension, std::int64_t extent, std::int64_t stride) {
    tensor.shape[dimension] = extent;
    tensor.strides[dimension] = stride;
  };
  if (plan.local.k_packed) {
    set(0, rows, columns.row);
    set(1, heads, columns.width);
  } else {
    const bool heads_first = layout == TILEWISE_BHSD;
    set(0, plan.local.batch, heads * columns.width);
    set(heads_first ? 2 : 1, rows, columns.row);
    set(heads_first ? 1 : 2, heads, columns.width);
  }
  set(tensor.rank - 1, columns.width, 1);
  return tensor;
}

Record record_of(const RingPlan& plan) {
  const problem::Problem& local = plan.local;
  const std::int64_t keys = plan.key_columns() + plan.value_columns();
  const std::int64_t gradients = plan.gradient_columns();
  return {{0, local.head_dim, keys},
          {plan.key_columns(), local.value_dim, keys},
          {0, local.head_dim, gradients},
          {local.dk.present() ? plan.key_columns() : 0, local.value_dim, gradients}};
}

tilewise_problem call_problem(const RingPlan& plan, const tilewise_problem& request,
                              const RingArrays& arrays, std::size_t step, const Call& call) {
  const Sums sums = sums_of(plan, request, arrays);
  tilewise_problem problem = blank(plan, request, arrays, call);
  set_queries(plan, sums, call, problem);
  set_keys(plan, arrays, sums, step, call, problem);
  set_score_inputs(plan, sums, plan.steps[step], call, problem);
  for (const problem::NamedTensor& named : problem::kTensors) {
    (problem.*named.member).device = plan.local.device;
    (problem.*named.member).device_index = plan.local.device_index;
  }
  return problem;
}

}  // namespace tilewise::distributed
