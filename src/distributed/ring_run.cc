#include "distributed/ring_run.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <vector>

#include "cuda/host/streams.h"
#include "distributed/call_problem.h"
#include "distributed/courier.h"
#include "distributed/rows.h"
#include "plan/pool.h"
#include "problem/read_tensors.h"
#include "problem/tensor_checks.h"
#include "problem/tensors.h"
#include "problem/validate.h"

namespace tilewise::distributed {
namespace {

using problem::fail;
using problem::present;
using problem::View;

// Two ranges of keys from each of two ranks, and two of gradients, are the most of a stage.
constexpr std::size_t kMostMessages = 8;

struct Messages {
  tilewise_message sends[kMostMessages];
  tilewise_message receives[kMostMessages];
  tilewise_exchange request;
  char activity[64];
};

View statistics_view(const tilewise_tensor& tensor) {
  View view;
  view.data = tensor.data;
  view.dtype = tensor.dtype;
  view.batch = tensor.rank == 3 ? tensor.strides[0] : 0;
  view.head = tensor.strides[tensor.rank - 2];
  view.row = tensor.strides[tensor.rank - 1];
  return view;
}

// Returns an array of rows as one tensor without batches and heads.
View array_view(void* array, std::int32_t dtype, std::int64_t columns) {
  View view;
  view.data = array;
  view.dtype = dtype;
  view.row = columns;
  view.column = 1;
  return view;
}

class RingRun {
 public:
  RingRun(const RingPlan& plan, const tilewise_communicator& communicator,
          const tilewise_problem& request, void* workspace, const tilewise_executor& executor)
      : plan_(plan),
        communicator_(communicator),
        request_(request),
        arrays_(workspace),
        sums_(sums_of(plan, request, arrays_)),
        worker_(plan.local, executor) {}

  Status run() {
    if (plan_.on_device()) send_lists();
    clear_sums();
    pack_own_keys();
    TILEWISE_RETURN_IF_ERROR(worker_.status());
    TILEWISE_RETURN_IF_ERROR(run_stages());
    round_sums();
    if (plan_.backward()) TILEWISE_RETURN_IF_ERROR(add_head_sums());
    return worker_.status();
  }

 private:
  // Sizes of q- and k-like tensors.
  Extents query_extents(std::int64_t width) const {
    const problem::Problem& local = plan_.local;
    return {local.q_packed ? 1 : local.batch, local.heads, local.q_rows, width};
  }
  Extents key_extents(std::int64_t rows, std::int64_t width) const {
    return {plan_.key_batch(), plan_.local.kv_heads, rows, width};
  }
  View view(const tilewise_tensor& tensor) const {
    return problem::row_view(tensor, request_.layout);
  }
  std::int32_t sum_dtype() const { return plan_.local.statistics; }

  void clear(const tilewise_tensor& tensor, const Extents& extents) {
    if (present(tensor)) fill_rows(view(tensor), extents, 0, worker_);
  }

  void send_lists() {
    worker_.start([&] {
      const auto bytes = static_cast<std::int64_t>(plan_.lists.size() * sizeof(std::int64_t));
      return cuda::send(plan_.local.device_index, arrays_.at(plan_.memory.lists),
                        plan_.lists.data(), bytes, worker_.stream());
    });
  }

  // Before the first step no row has seen a key. A range of queries whose results a call begins is
  // left alone.
  void clear_results() {
    const problem::Problem& local = plan_.local;
    for (std::int32_t range = 0; range < plan_.queries.count; ++range) {
      const bool begun = std::any_of(plan_.calls.begin(), plan_.calls.end(), [&](const Call& call) {
        return call.has_range(range) && call.begins;
      });
      if (begun) continue;
      const std::int64_t first = plan_.queries.rows_before(range);
      const std::int64_t rows = plan_.queries.ranges[static_cast<std::size_t>(range)].rows();
      Extents extents = query_extents(local.value_dim);
      extents.rows = rows;
      fill_rows(view(slice(sums_.out, row_dimension(sums_.out, request_.layout), first, rows)),
                extents, 0, worker_);
      extents.width = 1;
      fill_rows(statistics_view(slice(sums_.lse, sums_.lse.rank - 1, first, rows)), extents,
                -std::numeric_limits<double>::infinity(), worker_);
    }
  }

  // Every gradient begins as 0.
  void clear_sums() {
    const problem::Problem& local = plan_.local;
    if (!plan_.backward()) return clear_results();
    const bool begun = !plan_.calls.empty() && plan_.calls.front().begins;
    if (!begun) {
      clear(sums_.dq, query_extents(local.head_dim));
      clear(sums_.dk, key_extents(local.k_rows, local.head_dim));
      clear(sums_.dv, key_extents(local.k_rows, local.value_dim));
    }
    const std::int64_t heads = plan_.sink_count() + plan_.slope_count();
    fill_rows(array_view(head_sums(plan_.rank), sum_dtype(), heads), {1, 1, 1, heads}, 0, worker_);
    if (present(request_.dbias)) clear_bias_gradient();
  }

  void clear_bias_gradient() {
    const tilewise_tensor& tensor = request_.dbias;
    View of_scores = {tensor.data, tensor.dtype, 0, 0, 0, 0};
    std::int64_t* const strides[] = {&of_scores.batch, &of_scores.head, &of_scores.row,
                                     &of_scores.column};
    std::int64_t shape[] = {1, 1, 1, 1};
    for (int d = 0; d < tensor.rank; ++d) {
      *strides[4 - tensor.rank + d] = tensor.strides[d];
      shape[4 - tensor.rank + d] = tensor.shape[d];
    }
    fill_rows(of_scores, {shape[0], shape[1], shape[2], shape[3]}, 0, worker_);
  }

  void pack_own_keys() {
    if (plan_.memory.own_keys < 0) return;  // no other rank reads them
    const problem::Problem& local = plan_.local;
    const Record record = record_of(plan_);
    const auto pack = [&](const tilewise_tensor& tensor, const Columns& columns) {
      const tilewise_tensor packed =
          rows_of_array(plan_, request_.layout, arrays_.at(plan_.memory.own_keys), local.dtype,
                        columns, local.k_rows);
      copy_rows(view(tensor), view(packed), key_extents(local.k_rows, columns.width), worker_);
    };
    pack(request_.k, record.k);
    pack(request_.v, record.v);
  }

  Status run_stages() {
    const bool overlaps = plan_.size > 1 && communicator_.calls_from_any_thread != 0;
    Courier courier(communicator_, overlaps, worker_);
    for (std::size_t stage = 0; stage < plan_.stages.size(); ++stage) {
      Messages messages;
      set_messages(stage, &messages);
      TILEWISE_RETURN_IF_ERROR(courier.exchange_during(messages.request, messages.activity, [&] {
        return stage < plan_.steps.size() ? compute(stage) : Status{TILEWISE_OK};
      }));
      add_received_gradients(stage);
      TILEWISE_RETURN_IF_ERROR(worker_.status());
    }
    return TILEWISE_OK;
  }

  void set_messages(std::size_t number, Messages* messages) const {
    const Stage& stage = plan_.stages[number];
    const auto fill = [&](const std::vector<Transfer>& transfers, const Span& span,
                          tilewise_message* list) {
      for (std::size_t t = span.begin; t < span.end; ++t) {
        const Transfer& transfer = transfers[t];
        const std::int64_t bytes = plan_.row_bytes(transfer.buffer);
        char* const array = static_cast<char*>(array_of(plan_, arrays_, transfer.buffer));
        list[t - span.begin] = {array + transfer.row * bytes, transfer.rows * bytes, transfer.peer,
                                transfer.tag};
      }
      return static_cast<std::int32_t>(span.end - span.begin);
    };
    const std::int32_t sends = fill(plan_.sends, stage.sends, messages->sends);
    const std::int32_t receives = fill(plan_.receives, stage.receives, messages->receives);
    messages->request = {messages->sends, messages->receives, sends, receives,
                         plan_.options.timeout_seconds};
    std::snprintf(messages->activity, sizeof(messages->activity), "ring attention, step %zu of %d",
                  number, plan_.size);
  }

  Status compute(std::size_t number) {
    const Step& step = plan_.steps[number];
    if (number > 0 && plan_.backward() && plan_.key_gradients()) {
      const Buffer buffer = number % 2 == 0 ? Buffer::kGradients0 : Buffer::kGradients1;
      const std::int64_t columns = plan_.gradient_columns();
      fill_rows(array_view(array_of(plan_, arrays_, buffer), sum_dtype(), columns),
                {1, 1, step.pieces.rows(), columns}, 0, worker_);
    }
    for (std::size_t c = step.calls.begin; c < step.calls.end; ++c) {
      const Call& call = plan_.calls[c];
      const plan::Plan& kernel = plan_.kernels[call.kernel];
      plan::RunOptions options;
      options.workspace = arrays_.at(plan_.memory.kernels);
      options.workspace_bytes = static_cast<std::size_t>(kernel.workspace_bytes);
      options.executor = &worker_.executor();
      TILEWISE_RETURN_IF_ERROR(
          plan::run_plan(kernel, call_problem(plan_, request_, arrays_, number, call), options));
    }
    return worker_.status();
  }

  // The sums of the rank before join those of this stage's step, and the sums of this rank's keys
  // are home.
  void add_received_gradients(std::size_t number) {
    const Span& span = plan_.stages[number].receives;
    for (std::size_t t = span.begin; t < span.end; ++t) {
      const Transfer& transfer = plan_.receives[t];
      if (transfer.buffer == Buffer::kPartial) add_partial(number, transfer);
      if (transfer.buffer == Buffer::kHome) add_home(transfer);
    }
  }

  char* gradient_row(Buffer buffer, std::int64_t row) const {
    return static_cast<char*>(array_of(plan_, arrays_, buffer)) + row * plan_.gradient_bytes();
  }

  void add_partial(std::size_t number, const Transfer& transfer) {
    const Buffer sum = number % 2 == 0 ? Buffer::kGradients0 : Buffer::kGradients1;
    const std::int64_t columns = plan_.gradient_columns();
    add_rows(array_view(gradient_row(Buffer::kPartial, transfer.row), sum_dtype(), columns),
             array_view(gradient_row(sum, transfer.target), sum_dtype(), columns),
             {1, 1, transfer.rows, columns}, worker_);
  }

  void add_home(const Transfer& transfer) {
    const Record record = record_of(plan_);
    const auto add = [&](const tilewise_tensor& sum, const Columns& columns) {
      if (!present(sum)) return;
      const tilewise_tensor received =
          rows_of_array(plan_, request_.layout, gradient_row(Buffer::kHome, transfer.row),
                        sum_dtype(), columns, transfer.rows);
      const tilewise_tensor own =
          slice(sum, row_dimension(sum, request_.layout), transfer.target, transfer.rows);
      add_rows(view(received), view(own), key_extents(transfer.rows, columns.width), worker_);
    };
    add(sums_.dk, record.dk);
    add(sums_.dv, record.dv);
  }

  // Rounds sums that are not in the caller's tensors to the caller's dtype.
  void round_sums() {
    const problem::Problem& local = plan_.local;
    const auto round = [&](const tilewise_tensor& sum, const tilewise_tensor& result,
                           const Extents& extents) {
      if (present(result) && sum.data != result.data)
        copy_rows(view(sum), view(result), extents, worker_);
    };
    if (!plan_.backward()) {
      round(sums_.out, request_.out, query_extents(local.value_dim));
      return;
    }
    round(sums_.dq, request_.dq, query_extents(local.head_dim));
    round(sums_.dk, request_.dk, key_extents(local.k_rows, local.head_dim));
    round(sums_.dv, request_.dv, key_extents(local.k_rows, local.value_dim));
  }

  void* head_sums(std::int32_t rank) const {
    const std::int64_t count = plan_.sink_count() + plan_.slope_count();
    return arrays_.at(plan_.memory.head_sums + rank * count * problem::dtype_size(sum_dtype()));
  }

  // dSink and dSlope are sums over the rows of all ranks: every rank gets the sums of the others,
  // and adds them in the order of the ranks.
  Status add_head_sums() {
    const std::int64_t count = plan_.sink_count() + plan_.slope_count();
    if (count == 0) return TILEWISE_OK;
    const std::int64_t bytes = count * problem::dtype_size(sum_dtype());
    Courier courier(communicator_, false, worker_);
    for (std::int32_t distance = 1; distance < plan_.size; ++distance) {
      const std::int32_t to = plan_.ring().after(plan_.rank, distance);
      const std::int32_t from = plan_.ring().after(plan_.rank, -distance);
      const tilewise_message send = {head_sums(plan_.rank), bytes, to, 0};
      const tilewise_message receive = {head_sums(from), bytes, from, 0};
      const tilewise_exchange request = {&send, &receive, 1, 1, plan_.options.timeout_seconds};
      TILEWISE_RETURN_IF_ERROR(
          courier.exchange_during(request, "sums of dsink", [] { return Status{TILEWISE_OK}; }));
    }
    const Extents all = {1, 1, count, 1};
    const auto sum_of = [&](std::int32_t rank) {
      return array_view(head_sums(rank), sum_dtype(), 1);
    };
    for (std::int32_t rank = 1; rank < plan_.size; ++rank)
      add_rows(sum_of(rank), sum_of(0), all, worker_);
    store_head_sums(request_.dsink, 0);
    store_head_sums(request_.dalibi_slopes, plan_.sink_count());
    return TILEWISE_OK;
  }

  // Stores sums of (H) or (B, H).
  void store_head_sums(const tilewise_tensor& result, std::int64_t first) {
    if (!present(result)) return;
    const bool per_batch = result.rank == 2;
    const std::int64_t heads = result.shape[result.rank - 1];
    const std::int64_t element = problem::dtype_size(sum_dtype());
    View sums = array_view(static_cast<char*>(head_sums(0)) + first * element, sum_dtype(), 1);
    sums.head = heads;
    View stored = {result.data,
                   result.dtype,
                   0,
                   per_batch ? result.strides[0] : 0,
                   result.strides[result.rank - 1],
                   1};
    copy_rows(sums, stored, {1, per_batch ? result.shape[0] : 1, heads, 1}, worker_);
  }

  const RingPlan& plan_;
  const tilewise_communicator& communicator_;
  const tilewise_problem& request_;
  RingArrays arrays_;
  Sums sums_;
  Worker worker_;
};

bool same_shape(const tilewise_tensor& a, const tilewise_tensor& b) {
  return a.rank == b.rank && a.dtype == b.dtype &&
         std::equal(a.shape, a.shape + (a.rank > 0 ? a.rank : 0), b.shape);
}

// Checks that the plan was made for such a request, and its memory.
Status check_run(const RingPlan& plan, const tilewise_problem& request,
                 const RingRunOptions& options, problem::Problem* local) {
  if (options.executor != nullptr)
    TILEWISE_RETURN_IF_ERROR(plan::check_executor(*options.executor));
  tilewise_problem own = request;
  own.bias.rank = own.mask.rank = own.dbias.rank = 0;
  TILEWISE_RETURN_IF_ERROR(problem::make_problem(plan.operation, own, local));
  local->bias.dtype = present(request.bias) ? request.bias.dtype : 0;
  local->mask.dtype = present(request.mask) ? request.mask.dtype : 0;
  if (!same_shape(request.bias, plan.bias) || !same_shape(request.mask, plan.mask) ||
      (present(request.dbias) && !same_shape(request.dbias, plan.dbias))) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "bias, mask or dbias: differs from what the plan was made for");
  }
  const char* difference = plan::planned_difference(plan.local, *local);
  TILEWISE_RETURN_IF_ERROR(problem::check_pointers(plan.operation, request));
  // The lists of a device are not read again.
  if (difference == nullptr && !plan.on_device() && hash_of_lists(*local) != plan.lists_hash)
    difference = "cu_seqlens or seqused: the contents";
  if (difference != nullptr) {
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: differs from what the plan was made for",
                difference);
  }
  return plan::check_workspace("the plan", plan.memory.bytes, options.workspace,
                               options.workspace_bytes);
}

}  // namespace

Status run_ring(const RingPlan& plan, const tilewise_communicator& communicator,
                const tilewise_problem& request, const RingRunOptions& options) {
  problem::Problem local;
  Status checked = check_run(plan, request, options, &local);
  if (checked == TILEWISE_OK) checked = check_device(communicator, local);
  const double timeout_seconds = plan.options.timeout_seconds;
  if (checked != TILEWISE_OK) return refuse(communicator, timeout_seconds, checked);
  Fingerprint print = fingerprint_of(local, plan.options.schedule, plan.options.lengths);
  if (plan.on_device()) {
    set_lists(plan.whole.problem, &print);
    TILEWISE_RETURN_IF_ERROR(plan.agreement->reach(communicator, print, timeout_seconds));
  } else {
    const RingArrays arrays(options.workspace);
    TILEWISE_RETURN_IF_ERROR(
        compare_problems(communicator, print, timeout_seconds, arrays.at(plan.memory.comparison)));
  }
  const tilewise_executor executor =
      options.executor != nullptr ? *options.executor : plan::default_pool()->executor();
  const Status status = RingRun(plan, communicator, request, options.workspace, executor).run();
  if (status != TILEWISE_OK) communicator.abort(communicator.self);
  return status;
}

}  // namespace tilewise::distributed
