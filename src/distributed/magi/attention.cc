#include "distributed/magi/attention.h"

#include <algorithm>

#include "cuda/rows/rows.h"
#include "distributed/magi/request.h"
#include "problem/read_tensors.h"
#include "problem/tensor_checks.h"
#include "problem/tensors.h"
#include "problem/validate.h"

namespace tilewise::distributed::magi {
namespace {

using problem::Arena;
using problem::Checked;
using problem::fail;
using problem::present;
using problem::printable;
using problem::Status;

Status check_rows(const char* name, const tilewise_tensor& tensor, std::int64_t rows,
                  std::int32_t rank) {
  if (tensor.rank != 3) {
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: has %d dimensions, must be packed (T, H, D)", name,
                tensor.rank);
  }
  if (tensor.shape[0] == rows) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "%s: has %lld rows, must have the %lld of rank %d", name,
              printable(tensor.shape[0]), printable(rows), rank);
}

std::int64_t rows_of(const std::vector<Message>& messages) {
  std::int64_t rows = 0;
  for (const Message& message : messages) rows += message.count;
  return rows;
}

// Reserves memory for `rows` rows; -1 for none.
std::int64_t reserve(Arena& arena, std::int64_t rows, std::int64_t row_bytes) {
  return rows == 0 ? -1 : arena.reserve(Checked{rows} * Checked{row_bytes}).value;
}

// The most rows and messages of a stage.
struct Most {
  std::int64_t sent = 0;
  std::int64_t received = 0;
  std::int64_t messages = 0;
};
Most most_of(const Attention& attention) {
  Most most;
  for (const Stage& stage : attention.stages.stages) {
    most.sent = math::max(most.sent, rows_of(stage.sends));
    most.received = math::max(most.received, rows_of(stage.receives));
    const std::size_t messages = std::max(stage.sends.size(), stage.receives.size());
    most.messages = math::max(most.messages, static_cast<std::int64_t>(messages));
  }
  return most;
}

// Whether a result of this dtype needs a sum elsewhere: only several stages need one.
bool needs_sum(const Attention& attention, std::int32_t dtype) {
  return attention.last_stage() > 0 && dtype != 0 && dtype != attention.local.statistics;
}

void reserve_forward(Arena& arena, const Attention& attention, AttentionMemory& memory) {
  const problem::Problem& local = attention.local;
  const std::int64_t width = problem::dtype_size(local.statistics);
  if (needs_sum(attention, local.out.dtype))
    memory.out = reserve(arena, local.q_rows * local.heads, local.value_dim * width);
  if (!local.lse.present() && attention.last_stage() > 0)
    memory.lse = reserve(arena, local.q_rows, local.heads * width);
}

void reserve_backward(Arena& arena, const Attention& attention, const Most& most,
                      AttentionMemory& memory) {
  const problem::Problem& local = attention.local;
  const std::int64_t width = problem::dtype_size(local.statistics);
  if (attention.key_gradients()) {
    const std::int64_t row_bytes = attention.gradient_row_bytes();
    memory.gradients = reserve(arena, most.received, row_bytes);
    memory.gradients_sent = reserve(arena, most.received, row_bytes);
    memory.gradients_received = reserve(arena, most.sent, row_bytes);
  }
  if (needs_sum(attention, local.dq.dtype))
    memory.dq = reserve(arena, local.q_rows * local.heads, local.head_dim * width);
  if (needs_sum(attention, local.dk.dtype))
    memory.dk = reserve(arena, local.k_rows * local.kv_heads, local.head_dim * width);
  if (needs_sum(attention, local.dv.dtype))
    memory.dv = reserve(arena, local.k_rows * local.kv_heads, local.value_dim * width);
  if (local.dsink.present() && attention.size > 1)
    memory.dsink = reserve(arena, attention.size, local.heads * width);
}

std::int64_t slices_before(const Attention& attention, std::size_t stage) {
  std::int64_t count = 0;
  for (std::size_t s = 0; s < stage; ++s)
    count += static_cast<std::int64_t>(attention.stages.stages[s].slices.size());
  return count;
}

Status plan_memory(Attention& attention) {
  const Most most = most_of(attention);
  AttentionMemory& memory = attention.memory;
  Arena arena;
  if (attention.on_device()) {
    memory.slices =
        reserve(arena, slices_before(attention, attention.stages.stages.size()), sizeof(Slice));
  } else {
    memory.comparison = reserve(arena, comparison_bytes(attention.size), 1);
    memory.messages = reserve(arena, attention.most_messages(), sizeof(tilewise_message));
  }
  memory.keys = reserve(arena, most.received, attention.row_bytes());
  memory.keys_sent = reserve(arena, most.sent, attention.row_bytes());
  memory.keys_received = reserve(arena, most.received, attention.row_bytes());
  if (attention.backward()) {
    reserve_backward(arena, attention, most, memory);
  } else {
    reserve_forward(arena, attention, memory);
  }
  std::int64_t kernels = 1;
  for (const StageCall& call : attention.calls)
    kernels = math::max(kernels, call.kernel.workspace_bytes);
  memory.kernels = reserve(arena, kernels, 1);
  memory.bytes = arena.bytes();
  if (memory.bytes >= 0) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "workspace: exceeds 2^63 bytes");
}

// A contiguous tensor in the workspace, or `otherwise` if it has no place there.
tilewise_tensor sum_tensor(const tilewise_tensor& otherwise, char* workspace, std::int64_t offset,
                           std::int32_t dtype) {
  if (offset < 0) return otherwise;
  return tilewise_contiguous(workspace == nullptr ? nullptr : workspace + offset, dtype,
                             otherwise.rank, otherwise.shape);
}

// Rows of the array of a stage as a tensor (rows, Hk, width) from a column on.
tilewise_tensor stage_rows(const Attention& attention, void* array, std::int32_t dtype,
                           std::int64_t column, std::int64_t rows) {
  const std::int64_t width = column == 0 ? attention.local.head_dim : attention.local.value_dim;
  const std::int64_t shape[] = {rows, attention.local.kv_heads, width};
  char* const data =
      array == nullptr ? nullptr : static_cast<char*>(array) + column * problem::dtype_size(dtype);
  tilewise_tensor tensor = tilewise_contiguous(data, dtype, 3, shape);
  tensor.strides[0] = attention.row_columns();
  return tensor;
}

void set_sums(const Attention& attention, char* workspace, tilewise_problem& call) {
  const AttentionMemory& memory = attention.memory;
  const std::int32_t dtype = attention.local.statistics;
  call.dq = sum_tensor(call.dq, workspace, memory.dq, dtype);
  call.dk = sum_tensor(call.dk, workspace, memory.dk, dtype);
  call.dv = sum_tensor(call.dv, workspace, memory.dv, dtype);
  const std::int64_t before = attention.rank * attention.local.heads * problem::dtype_size(dtype);
  call.dsink = sum_tensor(call.dsink, workspace,
                          memory.dsink < 0 ? memory.dsink : memory.dsink + before, dtype);
  if (attention.backward()) return;
  call.out = sum_tensor(call.out, workspace, memory.out, dtype);
  if (memory.lse < 0) return;
  const std::int64_t shape[] = {attention.local.heads, attention.local.q_rows};
  call.lse =
      tilewise_contiguous(workspace == nullptr ? nullptr : workspace + memory.lse, dtype, 2, shape);
}

// Sets the keys of a stage that has them from other ranks, and the sums of their gradients.
void set_keys(const Attention& attention, const tilewise_problem& request, std::int64_t stage,
              char* workspace, tilewise_problem& call) {
  const problem::Problem& local = attention.local;
  const std::int64_t rows = attention.stages.stages[static_cast<std::size_t>(stage)].key_rows;
  const auto array = [&](std::int64_t offset) {
    return workspace == nullptr || offset < 0 ? nullptr : workspace + offset;
  };
  call.accumulate = 1;
  call.sink = call.dsink = {};
  const std::int64_t values = attention.key_columns();
  void* const keys = array(attention.memory.keys);
  call.k = stage_rows(attention, keys, local.dtype, 0, rows);
  call.v = stage_rows(attention, keys, local.dtype, values, rows);
  void* const gradients = array(attention.memory.gradients);
  if (present(request.dk)) call.dk = stage_rows(attention, gradients, local.statistics, 0, rows);
  if (present(request.dv))
    call.dv = stage_rows(attention, gradients, local.statistics, values, rows);
}

}  // namespace

std::int64_t Attention::most_messages() const {
  return math::max(4 * most_of(*this).messages, 2 * size);
}

std::int64_t Attention::row_bytes() const {
  return row_columns() * problem::dtype_size(local.dtype);
}

std::int64_t Attention::gradient_row_bytes() const {
  return row_columns() * problem::dtype_size(local.statistics);
}

tilewise_problem stage_problem(const Attention& attention, const tilewise_problem& request,
                               std::int64_t stage, void* workspace) {
  const Stage& own = attention.stages.stages[static_cast<std::size_t>(stage)];
  char* const base = static_cast<char*>(workspace);
  const auto array = [&](std::int64_t offset) {
    return base == nullptr || offset < 0 ? nullptr : base + offset;
  };
  tilewise_problem call = request;
  const std::int64_t count = static_cast<std::int64_t>(own.slices.size());
  const std::int64_t shape[] = {count, 6};
  void* slices = const_cast<Slice*>(own.slices.data());
  if (attention.on_device()) {
    char* const all = static_cast<char*>(array(attention.memory.slices));
    const std::int64_t before = slices_before(attention, static_cast<std::size_t>(stage));
    slices = all == nullptr ? nullptr : all + before * std::int64_t{sizeof(Slice)};
  }
  call.slices = tilewise_contiguous(slices, TILEWISE_INT64, 2, shape);
  set_sums(attention, base, call);
  if (stage > 0) set_keys(attention, request, stage, base, call);
  for (const problem::NamedTensor& named : problem::kTensors) {
    (call.*named.member).device = request.q.device;
    (call.*named.member).device_index = request.q.device_index;
  }
  return call;
}

Status make_attention(problem::Operation operation, const tilewise_problem& request,
                      const Plan& plan, std::int32_t rank, const AttentionOptions& options,
                      Attention* attention) {
  *attention = {};
  if (rank < 0 || rank >= plan.ranks) {
    return fail(TILEWISE_INVALID_ARGUMENT, "rank: is %d, must be 0 to %lld", rank,
                printable(plan.ranks - 1));
  }
  if (!(options.timeout_seconds > 0)) {
    return fail(TILEWISE_INVALID_ARGUMENT, "timeout_seconds: is %g, must be > 0",
                options.timeout_seconds);
  }
  tilewise_problem packed;
  TILEWISE_RETURN_IF_ERROR(packed_request(request, plan.ranks, &packed));
  attention->operation = operation;
  attention->options = options;
  attention->rank = rank;
  attention->area = plan.area_of_rank[static_cast<std::size_t>(rank)];
  attention->size = static_cast<std::int32_t>(plan.ranks);
  attention->stages = make_rank_plan(plan, rank);
  attention->lengths = {plan.mask.q_len, plan.mask.k_len};
  attention->plan_hash = hash_of(plan);
  TILEWISE_RETURN_IF_ERROR(check_rows("q", packed.q, attention->stages.q_rows, rank));
  TILEWISE_RETURN_IF_ERROR(check_rows("k", packed.k, attention->stages.k_rows, rank));
  if (plan.mask.heads > 1 && packed.q.shape[1] != plan.mask.heads) {
    return fail(TILEWISE_INVALID_ARGUMENT, "q: has %lld heads, the slices of the plan are of %lld",
                printable(packed.q.shape[1]), printable(plan.mask.heads));
  }
  TILEWISE_RETURN_IF_ERROR(problem::make_problem(
      operation, stage_problem(*attention, packed, 0, nullptr), &attention->local));
  if (attention->on_device()) {
    attention->agreement = std::make_shared<Agreement>();
    TILEWISE_RETURN_IF_ERROR(cuda::load_rows(attention->local.device_index));
  }
  // Twice: the sums of the stages decide which tensors lie in the workspace, and kernels how large
  // it is.
  attention->calls.resize(attention->stages.stages.size());
  TILEWISE_RETURN_IF_ERROR(plan_memory(*attention));
  for (std::size_t s = 0; s < attention->calls.size(); ++s) {
    StageCall& call = attention->calls[s];
    call.needed = s == 0 || attention->stages.stages[s].key_rows > 0;
    if (!call.needed) continue;
    const tilewise_problem problem =
        stage_problem(*attention, packed, static_cast<std::int64_t>(s), nullptr);
    TILEWISE_RETURN_IF_ERROR(plan::make_plan(operation, problem, options.kernels, &call.kernel));
  }
  return plan_memory(*attention);
}

void describe_attention(const Attention& attention, tilewise_distributed_info* info) {
  info->schedule = static_cast<std::int32_t>(Schedule::kBalanced);
  info->steps = 0;
  info->pairs = attention.area;
  std::int64_t sent = 0;  // rows of keys; those of gradients go the other way
  std::int64_t received = 0;
  std::int64_t sends = 0;
  std::int64_t receives = 0;
  for (std::size_t s = 0; s < attention.calls.size(); ++s) {
    const Stage& stage = attention.stages.stages[s];
    if (attention.calls[s].needed) ++info->steps;
    sent += rows_of(stage.sends);
    received += rows_of(stage.receives);
    sends += static_cast<std::int64_t>(stage.sends.size());
    receives += static_cast<std::int64_t>(stage.receives.size());
  }
  const bool reduces = attention.backward() && attention.key_gradients();
  const std::int64_t returned = reduces ? attention.gradient_row_bytes() : 0;
  info->sent_bytes = sent * attention.row_bytes() + received * returned;
  info->received_bytes = received * attention.row_bytes() + sent * returned;
  info->sent_messages = sends + (reduces ? receives : 0);
  info->received_messages = receives + (reduces ? sends : 0);
}

}  // namespace tilewise::distributed::magi
