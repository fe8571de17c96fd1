#include <cstdio>
#include <new>
#include <vector>

#include "cuda/host/streams.h"
#include "distributed/communicator.h"
#include "distributed/courier.h"
#include "distributed/magi/attention.h"
#include "distributed/magi/request.h"
#include "distributed/rows.h"
#include "plan/pool.h"
#include "problem/read_tensors.h"
#include "problem/tensor_checks.h"
#include "problem/tensors.h"
#include "problem/validate.h"

namespace tilewise::distributed::magi {
namespace {

using problem::fail;
using problem::present;
using problem::Status;
using problem::View;

enum Tag : std::int32_t { kKeysTag = 0, kGradientsTag = 1, kSinkTag = 2 };

class Run {
 public:
  // messages: most_messages() in host memory, beside a workspace on a device
  Run(const Attention& attention, const tilewise_communicator& communicator,
      const tilewise_problem& request, void* workspace, tilewise_message* messages,
      const tilewise_executor& executor)
      : attention_(attention),
        local_(attention.local),
        communicator_(communicator),
        request_(request),
        workspace_(static_cast<char*>(workspace)),
        own_(stage_problem(attention, request, 0, workspace)),
        messages_(attention.on_device()
                      ? messages
                      : reinterpret_cast<tilewise_message*>(at(attention.memory.messages))),
        worker_(attention.local, executor) {}

  Status run() {
    if (attention_.on_device()) send_slices();
    TILEWISE_RETURN_IF_ERROR(run_stages());
    round_sums();
    if (attention_.memory.dsink >= 0) TILEWISE_RETURN_IF_ERROR(add_sink_sums());
    return worker_.status();
  }

 private:
  char* at(std::int64_t offset) const { return offset < 0 ? nullptr : workspace_ + offset; }
  const Stage& stage(std::int64_t number) const {
    return attention_.stages.stages[static_cast<std::size_t>(number)];
  }
  bool reduces() const { return attention_.backward() && attention_.key_gradients(); }
  View view(const tilewise_tensor& tensor) const {
    return problem::row_view(tensor, request_.layout);
  }

  // Rows of an array of keys or gradients, K or V of them, as (row, head, column).
  View array_view(void* array, std::int32_t dtype, bool values, std::int64_t row) const {
    const std::int64_t first =
        row * attention_.row_columns() + (values ? attention_.key_columns() : 0);
    View result;
    result.data = static_cast<char*>(array) + first * problem::dtype_size(dtype);
    result.dtype = dtype;
    result.head = values ? local_.value_dim : local_.head_dim;
    result.row = attention_.row_columns();
    result.column = 1;
    return result;
  }
  // The rows of a tensor like k or v from `row` on.
  View rows_from(const tilewise_tensor& tensor, std::int64_t row) const {
    View result = view(tensor);
    result.data =
        static_cast<char*>(result.data) + row * result.row * problem::dtype_size(result.dtype);
    return result;
  }
  Extents extents(std::int64_t rows, bool values) const {
    return {1, local_.kv_heads, rows, values ? local_.value_dim : local_.head_dim};
  }
  // All rows of K, V or both of an array as one wide row each.
  Extents whole_rows(std::int64_t rows) const { return {1, 1, rows, attention_.row_columns()}; }

  void send_slices() {
    std::int64_t offset = attention_.memory.slices;
    for (const Stage& stage : attention_.stages.stages) {
      const auto bytes = static_cast<std::int64_t>(stage.slices.size() * sizeof(Slice));
      worker_.start([&] {
        return cuda::send(local_.device_index, at(offset), stage.slices.data(), bytes,
                          worker_.stream());
      });
      offset += bytes;
    }
  }

  // While the stage is computed, the keys of the next one arrive, and the gradients of the one
  // before go home.
  Status run_stages() {
    const std::int64_t last = attention_.last_stage();
    const bool overlaps = last > 0 && communicator_.calls_from_any_thread != 0;
    Courier courier(communicator_, overlaps, worker_);
    for (std::int64_t s = 0; s <= last + (reduces() && last > 0 ? 1 : 0); ++s) {
      const bool casts = s < last;
      const bool returns = reduces() && s >= 2;
      char activity[64];
      std::snprintf(activity, sizeof(activity), "attention, stage %lld of %lld",
                    problem::printable(s), problem::printable(last));
      const tilewise_exchange request = messages_of(casts ? s + 1 : -1, returns ? s - 1 : -1);
      TILEWISE_RETURN_IF_ERROR(courier.exchange_during(
          request, activity, [&] { return s <= last ? compute(s) : Status{TILEWISE_OK}; }));
      if (returns) add_received_gradients(stage(s - 1));
      if (casts) unpack_keys(stage(s + 1));
      TILEWISE_RETURN_IF_ERROR(worker_.status());
    }
    return TILEWISE_OK;
  }

  // Packs the rows that are sent. The keys of one stage and the gradients of another travel
  // together; -1: none.
  tilewise_exchange messages_of(std::int64_t keys, std::int64_t gradients) {
    tilewise_message* next = messages_;
    const auto add = [&](const std::vector<Message>& list, std::int64_t offset,
                         std::int64_t row_bytes, std::int32_t tag) {
      std::int64_t row = 0;
      for (const Message& message : list) {
        *next++ = {at(offset) + row * row_bytes, message.count * row_bytes, message.peer, tag};
        row += message.count;
      }
    };
    const AttentionMemory& memory = attention_.memory;
    const std::int64_t row_bytes = attention_.row_bytes();
    const std::int64_t gradient_bytes = attention_.gradient_row_bytes();
    if (keys >= 0) pack_keys(stage(keys));
    if (gradients >= 0) pack_gradients(stage(gradients));
    if (keys >= 0) add(stage(keys).sends, memory.keys_sent, row_bytes, kKeysTag);
    if (gradients >= 0)
      add(stage(gradients).receives, memory.gradients_sent, gradient_bytes, kGradientsTag);
    tilewise_message* const receives = next;
    if (keys >= 0) add(stage(keys).receives, memory.keys_received, row_bytes, kKeysTag);
    if (gradients >= 0)
      add(stage(gradients).sends, memory.gradients_received, gradient_bytes, kGradientsTag);
    return {messages_, receives, static_cast<std::int32_t>(receives - messages_),
            static_cast<std::int32_t>(next - receives), attention_.options.timeout_seconds};
  }

  // Calls f(row of the packed messages, range of rows that it comes from or goes to).
  template <class Function>
  static void for_each_range(const std::vector<Message>& list, Function f) {
    std::int64_t row = 0;
    for (const Message& message : list) {
      for (const Range& range : message.rows) {
        f(row, range);
        row += range.end - range.begin;
      }
    }
  }

  void pack_keys(const Stage& stage) {
    void* const array = at(attention_.memory.keys_sent);
    for_each_range(stage.sends, [&](std::int64_t row, const Range& range) {
      const std::int64_t rows = range.end - range.begin;
      copy_rows(rows_from(request_.k, range.begin), array_view(array, local_.dtype, false, row),
                extents(rows, false), worker_);
      copy_rows(rows_from(request_.v, range.begin), array_view(array, local_.dtype, true, row),
                extents(rows, true), worker_);
    });
  }

  void unpack_keys(const Stage& stage) {
    const AttentionMemory& memory = attention_.memory;
    for_each_range(stage.receives, [&](std::int64_t row, const Range& range) {
      copy_rows(array_view(at(memory.keys_received), local_.dtype, false, row),
                array_view(at(memory.keys), local_.dtype, false, range.begin),
                whole_rows(range.end - range.begin), worker_);
    });
  }

  void pack_gradients(const Stage& stage) {
    const AttentionMemory& memory = attention_.memory;
    for_each_range(stage.receives, [&](std::int64_t row, const Range& range) {
      copy_rows(array_view(at(memory.gradients), local_.statistics, false, range.begin),
                array_view(at(memory.gradients_sent), local_.statistics, false, row),
                whole_rows(range.end - range.begin), worker_);
    });
  }

  // Adds the gradients that each rank has sent, in the order of the ranks.
  void add_received_gradients(const Stage& stage) {
    void* const array = at(attention_.memory.gradients_received);
    for_each_range(stage.sends, [&](std::int64_t row, const Range& range) {
      const std::int64_t rows = range.end - range.begin;
      if (present(own_.dk)) {
        add_rows(array_view(array, local_.statistics, false, row), rows_from(own_.dk, range.begin),
                 extents(rows, false), worker_);
      }
      if (present(own_.dv)) {
        add_rows(array_view(array, local_.statistics, true, row), rows_from(own_.dv, range.begin),
                 extents(rows, true), worker_);
      }
    });
  }

  Status compute(std::int64_t number) {
    const StageCall& call = attention_.calls[static_cast<std::size_t>(number)];
    if (!call.needed) return TILEWISE_OK;
    if (number > 0 && reduces()) {
      fill_rows(array_view(at(attention_.memory.gradients), local_.statistics, false, 0),
                whole_rows(stage(number).key_rows), 0, worker_);
    }
    plan::RunOptions options;
    options.workspace = at(attention_.memory.kernels);
    options.workspace_bytes = static_cast<std::size_t>(call.kernel.workspace_bytes);
    options.executor = &worker_.executor();
    return plan::run_plan(call.kernel, stage_problem(attention_, request_, number, workspace_),
                          options);
  }

  // Rounds sums that are not in the caller's tensors to the caller's dtype.
  void round_sums() {
    const auto round = [&](const tilewise_tensor& sum, const tilewise_tensor& result) {
      if (!present(result) || sum.data == result.data) return;
      const Extents all = {1, result.shape[1], result.shape[0], result.shape[2]};
      copy_rows(view(sum), view(result), all, worker_);
    };
    if (!attention_.backward()) return round(own_.out, request_.out);
    round(own_.dq, request_.dq);
    round(own_.dk, request_.dk);
    round(own_.dv, request_.dv);
  }

  // dSink is a sum over the rows of all ranks: every rank gets the others' sums, and adds them in
  // the order of the ranks.
  Status add_sink_sums() {
    const std::int64_t bytes = local_.heads * problem::dtype_size(local_.statistics);
    if (bytes == 0) return TILEWISE_OK;
    char* const sums = at(attention_.memory.dsink);
    std::int32_t count = 0;
    for (std::int32_t peer = 0; peer < attention_.size; ++peer) {
      if (peer == attention_.rank) continue;
      messages_[count] = {sums + attention_.rank * bytes, bytes, peer, kSinkTag};
      messages_[attention_.size + count++] = {sums + peer * bytes, bytes, peer, kSinkTag};
    }
    const tilewise_exchange request = {messages_, messages_ + attention_.size, count, count,
                                       attention_.options.timeout_seconds};
    Courier courier(communicator_, false, worker_);
    TILEWISE_RETURN_IF_ERROR(
        courier.exchange_during(request, "sums of dsink", [] { return Status{TILEWISE_OK}; }));
    const auto sum_of = [&](std::int64_t rank) {
      return View{sums + rank * bytes, local_.statistics, 0, 0, 1, 0};
    };
    const Extents all = {1, 1, local_.heads, 1};
    for (std::int32_t rank = 1; rank < attention_.size; ++rank)
      add_rows(sum_of(rank), sum_of(0), all, worker_);
    const tilewise_tensor& result = request_.dsink;
    copy_rows(sum_of(0), {result.data, result.dtype, 0, 0, result.strides[0], 0}, all, worker_);
    return TILEWISE_OK;
  }

  const Attention& attention_;
  const problem::Problem& local_;
  const tilewise_communicator& communicator_;
  const tilewise_problem& request_;
  char* const workspace_;
  const tilewise_problem own_;  // of stage 0: its outputs are the sums
  tilewise_message* const messages_;
  Worker worker_;
};

// Checks that the plan was made for such a request, and its memory. Sets `local` to the problem
// with this rank's own keys.
Status check_run(const Attention& attention, const tilewise_communicator& communicator,
                 const tilewise_problem& request, const AttentionRun& run,
                 problem::Problem* local) {
  if (communicator.size != attention.size || communicator.rank != attention.rank) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "communicator: is of rank %d of %d, the plan is of rank %d of %d",
                communicator.rank, communicator.size, attention.rank, attention.size);
  }
  if (run.executor != nullptr) TILEWISE_RETURN_IF_ERROR(plan::check_executor(*run.executor));
  TILEWISE_RETURN_IF_ERROR(plan::check_workspace("the plan", attention.memory.bytes, run.workspace,
                                                 run.workspace_bytes));
  const tilewise_problem own = stage_problem(attention, request, 0, run.workspace);
  TILEWISE_RETURN_IF_ERROR(problem::make_problem(attention.operation, own, local));
  const char* const difference =
      plan::planned_difference(attention.calls[0].kernel.problem, *local);
  if (difference != nullptr) {
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: differs from what the plan was made for",
                difference);
  }
  return problem::check_pointers(attention.operation, own);
}

}  // namespace

Status run_attention(const Attention& attention, const tilewise_communicator& communicator,
                     const tilewise_problem& request, const AttentionRun& run) {
  TILEWISE_RETURN_IF_ERROR(check_communicator(&communicator));
  problem::Problem local;
  tilewise_problem packed;
  const double timeout_seconds = attention.options.timeout_seconds;
  Status checked = packed_request(request, attention.size, &packed);
  if (checked == TILEWISE_OK) checked = check_run(attention, communicator, packed, run, &local);
  if (checked == TILEWISE_OK) checked = check_device(communicator, local);
  std::vector<tilewise_message> messages;
  try {
    if (attention.on_device()) messages.resize(static_cast<std::size_t>(attention.most_messages()));
  } catch (const std::bad_alloc&) {
    checked = fail(TILEWISE_NO_MEMORY, "no memory for the messages of a run");
  }
  if (checked != TILEWISE_OK) return refuse(communicator, timeout_seconds, checked);
  Fingerprint print = fingerprint_of(local, Schedule::kBalanced, attention.lengths);
  print[Field::kPlan] = attention.plan_hash;
  if (attention.on_device()) {
    TILEWISE_RETURN_IF_ERROR(attention.agreement->reach(communicator, print, timeout_seconds));
  } else {
    char* const scratch = static_cast<char*>(run.workspace) + attention.memory.comparison;
    TILEWISE_RETURN_IF_ERROR(compare_problems(communicator, print, timeout_seconds, scratch));
  }
  const tilewise_executor executor =
      run.executor != nullptr ? *run.executor : plan::default_pool()->executor();
  const Status status =
      Run(attention, communicator, packed, run.workspace, messages.data(), executor).run();
  // The other ranks must not wait for this one.
  if (status != TILEWISE_OK) communicator.abort(communicator.self);
  return status;
}

}  // namespace tilewise::distributed::magi
