#include "distributed/ring_plan.h"

#include <algorithm>

#include "cuda/rows/rows.h"
#include "distributed/call_problem.h"
#include "problem/arena.h"
#include "problem/tensor_checks.h"
#include "problem/tensors.h"
#include "problem/validate.h"

namespace tilewise::distributed {
namespace {

using problem::Arena;
using problem::Checked;
using problem::fail;
using problem::present;
using problem::printable;

Status check_options(const RingOptions& options) {
  if (!(options.timeout_seconds > 0)) {
    return fail(TILEWISE_INVALID_ARGUMENT, "timeout_seconds: is %g, must be > 0",
                options.timeout_seconds);
  }
  return TILEWISE_OK;
}

Status check_rows(const char* name, std::int64_t rows, const Shard& shard, std::int64_t length,
                  const RingPlan& plan) {
  if (rows == shard.rows()) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT,
              "%s: has %lld rows, but rank %d of %d holds %lld of %lld tokens (%s)", name,
              printable(rows), plan.rank, plan.size, printable(shard.rows()), printable(length),
              schedule_name(plan.options.schedule));
}

// Refuses the options that a schedule, or several ranks, exclude.
Status check_options_of_ranks(const RingPlan& plan) {
  const problem::Problem& local = plan.local;
  if (plan.options.schedule == Schedule::kStriped) {
    const bool alibi = local.alibi_slopes.present();
    if (alibi || local.dropout_p > 0) {
      return fail(TILEWISE_UNSUPPORTED, "%s: not supported by the striped schedule",
                  alibi ? "alibi_slopes" : "dropout_p");
    }
  }
  if (local.batch_invariant && plan.size > 1 && (local.q_packed || local.k_packed)) {
    return fail(TILEWISE_UNSUPPORTED,
                "batch_invariant: not supported for packed tensors on several ranks, whose sums "
                "depend on where the batch is cut");
  }
  return TILEWISE_OK;
}

// Checks a bias or mask: the rows of the rank, and the columns of the whole.
Status check_scores(const char* name, const tilewise_tensor& tensor, const RingPlan& plan) {
  const problem::Problem& local = plan.local;
  TILEWISE_RETURN_IF_ERROR(problem::check_tensor(name, tensor));
  if (!present(tensor)) return TILEWISE_OK;
  if (local.q_packed || local.k_packed) {
    return fail(TILEWISE_UNSUPPORTED, "%s: not supported for packed tensors on several ranks",
                name);
  }
  const std::int64_t columns = tensor.shape[tensor.rank - 1];
  if (columns != 1 && columns != plan.options.lengths.k) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "%s: has %lld columns, must be 1 or k_len = %lld, those of the whole", name,
                printable(columns), printable(plan.options.lengths.k));
  }
  const std::int64_t rows = tensor.rank >= 2 ? tensor.shape[tensor.rank - 2] : 1;
  if (rows != 1 && rows != local.q_rows) {
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: has %lld rows, must be 1 or %lld, those of q", name,
                printable(rows), printable(local.q_rows));
  }
  return TILEWISE_OK;
}

Status check_bias_gradient(const tilewise_problem& request, const RingPlan& plan) {
  const tilewise_tensor& bias = request.bias;
  if (!plan.backward() || !present(request.dbias)) return TILEWISE_OK;
  if (!present(bias)) return fail(TILEWISE_INVALID_ARGUMENT, "dbias: given without bias");
  TILEWISE_RETURN_IF_ERROR(problem::check_tensor("dbias", request.dbias));
  TILEWISE_RETURN_IF_ERROR(
      problem::check_shape("dbias", request.dbias, bias.rank, bias.shape, "that of bias"));
  TILEWISE_RETURN_IF_ERROR(
      problem::check_dtype("dbias", request.dbias, plan.local.statistics, plan.local.statistics));
  const bool has_rows = bias.rank >= 2 && bias.shape[bias.rank - 2] == plan.local.q_rows;
  if (plan.size > 1 && !has_rows) {
    return fail(TILEWISE_UNSUPPORTED,
                "dbias: not supported if the bias broadcasts over the rows, which ranks share");
  }
  return TILEWISE_OK;
}

// Checks the products of sizes that a plan forms: bytes of tensors, also of other ranks.
Status check_sizes(const RingPlan& plan) {
  const problem::Problem& local = plan.local;
  const Checked widths = Checked{local.head_dim} + Checked{local.value_dim};
  const auto fits = [&](std::int64_t heads, std::int64_t length) {
    return (Checked{math::max(local.batch, 1)} * Checked{heads} * widths * Checked{length + 1} *
            Checked{16})
        .valid;
  };
  if (fits(local.heads, plan.options.lengths.q) && fits(local.kv_heads, plan.options.lengths.k))
    return TILEWISE_OK;
  return fail(TILEWISE_NO_MEMORY, "the workspace for this problem exceeds 2^63 bytes");
}

// Checks the tensors of this rank. The columns of bias and mask are those of the whole, so these
// are not checked as parts of the local problem.
Status read_local(const tilewise_problem& request, RingPlan& plan) {
  tilewise_problem own = request;
  own.bias.rank = own.mask.rank = own.dbias.rank = 0;
  TILEWISE_RETURN_IF_ERROR(problem::make_problem(plan.operation, own, &plan.local));
  plan.local.bias.dtype = present(request.bias) ? request.bias.dtype : 0;
  plan.local.mask.dtype = present(request.mask) ? request.mask.dtype : 0;
  const Lengths lengths = plan.options.lengths;
  TILEWISE_RETURN_IF_ERROR(check_rows("q", plan.local.q_rows, plan.queries, lengths.q, plan));
  TILEWISE_RETURN_IF_ERROR(check_rows("k", plan.local.k_rows, plan.keys, lengths.k, plan));
  TILEWISE_RETURN_IF_ERROR(check_sizes(plan));
  TILEWISE_RETURN_IF_ERROR(check_options_of_ranks(plan));
  TILEWISE_RETURN_IF_ERROR(check_scores("bias", request.bias, plan));
  TILEWISE_RETURN_IF_ERROR(check_scores("mask", request.mask, plan));
  return check_bias_gradient(request, plan);
}

}  // namespace

std::int64_t RingPlan::query_rows(const Call& call) const {
  std::int64_t rows = 0;
  for (std::int32_t r = 0; r < queries.count; ++r)
    rows += call.has_range(r) ? queries.ranges[static_cast<std::size_t>(r)].rows() : 0;
  return rows;
}
std::int64_t RingPlan::key_columns() const { return key_batch() * local.kv_heads * local.head_dim; }
std::int64_t RingPlan::value_columns() const {
  return key_batch() * local.kv_heads * local.value_dim;
}
std::int64_t RingPlan::gradient_columns() const {
  return (local.dk.present() ? key_columns() : 0) + (local.dv.present() ? value_columns() : 0);
}
std::int64_t RingPlan::key_bytes() const {
  return (key_columns() + value_columns()) * problem::dtype_size(local.dtype);
}
std::int64_t RingPlan::gradient_bytes() const {
  return gradient_columns() * problem::dtype_size(local.statistics);
}
std::int64_t RingPlan::row_bytes(Buffer buffer) const {
  return buffer <= Buffer::kKeys1 ? key_bytes() : gradient_bytes();
}
std::int64_t RingPlan::sink_count() const { return local.dsink.present() ? local.heads : 0; }
std::int64_t RingPlan::slope_count() const {
  if (!local.dalibi_slopes.present()) return 0;
  return (local.slopes_per_batch ? local.batch : 1) * local.heads;
}

Status make_ring_plan(problem::Operation operation, const tilewise_problem& request,
                      const RingOptions& options, std::int32_t rank, std::int32_t size,
                      RingPlan* plan) {
  *plan = RingPlan{};
  plan->options = options;
  plan->rank = rank;
  plan->size = size;
  plan->operation = operation;
  TILEWISE_RETURN_IF_ERROR(check_options(options));
  TILEWISE_RETURN_IF_ERROR(make_whole(operation, request, options.lengths, &plan->whole));
  if (options.schedule == Schedule::kAutomatic)
    plan->options.schedule = choose_schedule(plan->whole, options.lengths, size);
  plan->queries = plan->ring().queries(rank);
  plan->keys = plan->ring().keys(rank);
  TILEWISE_RETURN_IF_ERROR(read_local(request, *plan));
  plan->lists_hash = hash_of_lists(plan->on_device() ? plan->whole.problem : plan->local);
  plan->bias = request.bias;
  plan->mask = request.mask;
  plan->dbias = request.dbias;
  if (plan->on_device()) {
    plan->agreement = std::make_shared<Agreement>();
    TILEWISE_RETURN_IF_ERROR(cuda::load_rows(plan->local.device_index));
  }
  plan_transfers(*plan);
  plan_calls(*plan);
  TILEWISE_RETURN_IF_ERROR(plan_kernels(request, *plan));
  return plan_memory(*plan);
}

// Calls of equal shapes share the plan of their kernel.
Status plan_kernels(const tilewise_problem& request, RingPlan& plan) {
  for (std::size_t s = 0; s < plan.steps.size(); ++s) {
    const Step& step = plan.steps[s];
    for (std::size_t c = step.calls.begin; c < step.calls.end; ++c) {
      Call& call = plan.calls[c];
      const tilewise_problem problem = call_problem(plan, request, RingArrays(), s, call);
      problem::Problem read;
      TILEWISE_RETURN_IF_ERROR(problem::make_problem(plan.operation, problem, &read));
      const auto fits = [&](const plan::Plan& known) {
        return plan::planned_difference(known.problem, read) == nullptr;
      };
      const auto known = std::find_if(plan.kernels.begin(), plan.kernels.end(), fits);
      call.kernel = static_cast<std::size_t>(known - plan.kernels.begin());
      if (known != plan.kernels.end()) continue;
      plan::Plan made;
      TILEWISE_RETURN_IF_ERROR(
          plan::make_plan(plan.operation, problem, plan.options.kernels, &made));
      plan.kernels.push_back(made);
    }
  }
  return TILEWISE_OK;
}

namespace {

// Reserves parts of the workspace.
class Reservation {
 public:
  explicit Reservation(const RingPlan& plan) : plan_(plan), local_(plan.local) {}

  std::int64_t take(Checked count, std::int64_t bytes) {
    return arena_.reserve(count * Checked{bytes}).value;
  }
  std::int64_t take(std::int64_t count, std::int64_t bytes) { return take(Checked{count}, bytes); }

  // Reserves the sum from which an output of another dtype is rounded; -1 if it needs none.
  std::int64_t take_sum(const problem::View& output, bool query_side, std::int64_t width) {
    if (!output.present() || output.dtype == local_.statistics) return -1;
    return take(heads_of(query_side), width * element());
  }

  Checked heads_of(bool query_side) const {
    const bool packed = query_side ? local_.q_packed : local_.k_packed;
    return Checked{packed ? 1 : local_.batch} *
           Checked{query_side ? local_.heads : local_.kv_heads} *
           Checked{query_side ? local_.q_rows : local_.k_rows};
  }
  std::int64_t element() const { return problem::dtype_size(local_.statistics); }
  std::int64_t bytes() const { return arena_.bytes(); }

  // The most rows of keys that a step has.
  std::int64_t step_rows() const {
    std::int64_t rows = 0;
    for (std::size_t s = 1; s < plan_.steps.size(); ++s)
      rows = std::max(rows, plan_.steps[s].pieces.rows());
    return rows;
  }
  // The most rows of gradients that come home at a time.
  std::int64_t home_rows() const {
    std::int64_t rows = 0;
    for (const Transfer& transfer : plan_.receives) {
      if (transfer.buffer == Buffer::kHome) rows = std::max(rows, transfer.row + transfer.rows);
    }
    return rows;
  }
  bool sends_own_keys() const {
    return std::any_of(plan_.sends.begin(), plan_.sends.end(),
                       [](const Transfer& t) { return t.buffer == Buffer::kOwnKeys; });
  }

 private:
  const RingPlan& plan_;
  const problem::Problem& local_;
  Arena arena_;
};

}  // namespace

Status plan_memory(RingPlan& plan) {
  const problem::Problem& local = plan.local;
  RingMemory& memory = plan.memory;
  Reservation reservation(plan);
  const std::int64_t rows = reservation.step_rows();
  if (plan.on_device()) {
    memory.lists = reservation.take(static_cast<std::int64_t>(plan.lists.size()), 8);
  } else {
    memory.comparison = reservation.take(comparison_bytes(plan.size), 1);
  }
  if (reservation.sends_own_keys())
    memory.own_keys = reservation.take(local.k_rows, plan.key_bytes());
  for (std::int64_t& keys : memory.keys) keys = reservation.take(rows, plan.key_bytes());
  if (plan.backward()) {
    for (std::int64_t& gradients : memory.gradients)
      gradients = reservation.take(rows, plan.gradient_bytes());
    memory.partial = reservation.take(rows, plan.gradient_bytes());
    memory.home = reservation.take(reservation.home_rows(), plan.gradient_bytes());
    memory.dq = reservation.take_sum(local.dq, true, local.head_dim);
    memory.dk = reservation.take_sum(local.dk, false, local.head_dim);
    memory.dv = reservation.take_sum(local.dv, false, local.value_dim);
    memory.head_sums = reservation.take(plan.size * (plan.sink_count() + plan.slope_count()),
                                        reservation.element());
  } else {
    memory.out = reservation.take_sum(local.out, true, local.value_dim);
    if (!local.lse.present())
      memory.lse = reservation.take(reservation.heads_of(true), reservation.element());
  }
  std::int64_t kernels = 0;
  for (const plan::Plan& kernel : plan.kernels) kernels = std::max(kernels, kernel.workspace_bytes);
  memory.kernels = reservation.take(kernels, 1);
  memory.bytes = reservation.bytes();
  if (memory.bytes < 0)
    return fail(TILEWISE_NO_MEMORY, "the workspace for this problem exceeds 2^63 bytes");
  return TILEWISE_OK;
}

void describe_ring_plan(const RingPlan& plan, tilewise_distributed_info* info) {
  info->schedule = static_cast<std::int32_t>(plan.options.schedule);
  info->steps = 0;
  info->pairs = 0;
  for (const Step& step : plan.steps) {
    if (step.calls.begin < step.calls.end) ++info->steps;
    const Shard keys = plan.ring().keys(step.owner);
    for (std::int32_t q = 0; q < plan.queries.count; ++q) {
      for (std::int32_t k = 0; k < keys.count; ++k) {
        info->pairs += visible_pairs(plan.whole, plan.queries.ranges[static_cast<std::size_t>(q)],
                                     keys.ranges[static_cast<std::size_t>(k)]);
      }
    }
  }
  const auto count = [&](const std::vector<Transfer>& transfers, std::int64_t* messages,
                         std::int64_t* bytes) {
    *messages = static_cast<std::int64_t>(transfers.size());
    *bytes = 0;
    for (const Transfer& transfer : transfers)
      *bytes += transfer.rows * plan.row_bytes(transfer.buffer);
  };
  count(plan.sends, &info->sent_messages, &info->sent_bytes);
  count(plan.receives, &info->received_messages, &info->received_bytes);
}

}  // namespace tilewise::distributed
