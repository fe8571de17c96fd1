#include "distributed.h"

#include <cstring>
#include <iterator>
#include <optional>

#include "call.h"
#include "communicator.h"
#include "errors.h"
#include "slots.h"
#include "token_plan.h"

namespace nb = nanobind;

namespace tilewise::python {
namespace {

constexpr const char* kSchedules[] = {"automatic", "contiguous", "zigzag", "striped", "balanced"};
static_assert(TILEWISE_SCHEDULE_AUTOMATIC == 0 && TILEWISE_SCHEDULE_CONTIGUOUS == 1 &&
                  TILEWISE_SCHEDULE_ZIGZAG == 2 && TILEWISE_SCHEDULE_STRIPED == 3 &&
                  TILEWISE_SCHEDULE_BALANCED == 4,
              "A schedule's number is the position of its name.");

std::int32_t schedule_number(nb::handle schedule) {
  const char* const text = text_of("schedule", schedule);
  for (std::size_t number = 0; number < std::size(kSchedules); ++number) {
    if (std::strcmp(text, kSchedules[number]) == 0) return static_cast<std::int32_t>(number);
  }
  raise(PyExc_ValueError,
        "schedule: is '%s', must be 'contiguous', 'zigzag', 'striped', 'balanced' or 'automatic'",
        text);
}

// What a rank says of the whole: (schedule, q_len, k_len, timeout_seconds, token plan or None).
tilewise_distributed_options options_of(const nb::tuple& whole) {
  tilewise_distributed_options options;
  tilewise_distributed_options_init(&options);
  options.schedule = schedule_number(whole[0]);
  options.q_len = nb::cast<std::int64_t>(whole[1]);
  options.k_len = nb::cast<std::int64_t>(whole[2]);
  options.timeout_seconds = nb::cast<double>(whole[3]);
  options.token_plan = token_plan_of(whole[4]);
  return options;
}

using Work = tilewise_status (*)(const tilewise_problem*, const tilewise_distributed_options*,
                                 const tilewise_communicator*, const tilewise_executor*);

// Takes part in the comparison of problems with one that is refused, so that no rank waits for this
// one.
void refuse(Communicator& communicator, double timeout_seconds) {
  tilewise_problem nothing;
  tilewise_problem_init(&nothing);
  tilewise_distributed_options options;
  tilewise_distributed_options_init(&options);
  options.timeout_seconds = timeout_seconds;
  const nb::gil_scoped_release released;
  tilewise_distributed_forward(&nothing, &options, &communicator.get(), nullptr);
}

// Runs an operation once, on all ranks together.
void run(std::int32_t operation, const char* caller, const nb::tuple& tensors,
         const nb::dict& options, Communicator& communicator, const nb::tuple& whole,
         nb::handle stream, nb::handle threads) {
  const Work work =
      operation == TILEWISE_FORWARD ? tilewise_distributed_forward : tilewise_distributed_backward;
  Call call(stream_number(stream));
  tilewise_distributed_options distributed;
  std::optional<Executor> executor;
  try {
    distributed = options_of(whole);
    set_slots(operation, tensors, &call);
    call.set_options(caller, options);
    executor.emplace(threads, call.stream());
  } catch (...) {
    refuse(communicator, nb::cast<double>(whole[3]));
    throw;
  }
  tilewise_status status;
  {
    const nb::gil_scoped_release released;
    status = work(&call.problem(), &distributed, &communicator.get(), executor->get());
  }
  communicator.rethrow();
  check(status);
}

nb::list token_ranges(nb::handle schedule, std::int64_t length, std::int32_t size,
                      std::int32_t rank) {
  tilewise_token_range ranges[TILEWISE_MAX_TOKEN_RANGES];
  std::int32_t count = 0;
  check(tilewise_token_ranges(schedule_number(schedule), length, size, rank, ranges, &count));
  nb::list list;
  for (std::int32_t r = 0; r < count; ++r)
    list.append(nb::make_tuple(ranges[r].begin, ranges[r].end, ranges[r].stride));
  return list;
}

// What `automatic` means for a mask. `batch` is the number of dense sequences.
const char* choose_schedule(const char* caller, const nb::dict& options, std::int64_t batch,
                            std::int32_t size, std::int64_t q_len, std::int64_t k_len) {
  Call call(0);
  call.set_options(caller, options);
  tilewise_problem problem = call.problem();
  const auto rows_of = [batch](const tilewise_tensor& starts, std::int64_t rows) {
    const bool packed = starts.rank != 0;
    const std::int64_t dense[] = {batch, rows, 1, 1};
    const std::int64_t tokens[] = {rows, 1, 1};
    return tilewise_contiguous(nullptr, TILEWISE_FP32, packed ? 3 : 4, packed ? tokens : dense);
  };
  problem.q = problem.out = rows_of(problem.cu_seqlens_q, q_len);
  problem.k = problem.v = rows_of(problem.cu_seqlens_k, k_len);
  tilewise_distributed_options distributed;
  tilewise_distributed_options_init(&distributed);
  distributed.q_len = q_len;
  distributed.k_len = k_len;
  std::int32_t schedule = 0;
  check(tilewise_distributed_schedule(&problem, &distributed, size, &schedule));
  return kSchedules[schedule];
}

}  // namespace

void bind_distributed(nb::module_& module) {
  bind_token_plan(module);
  nb::class_<Communicator>(module, "Communicator")
      .def(nb::init<std::int32_t, std::int32_t, bool, nb::object>(), nb::arg("rank"),
           nb::arg("size"), nb::arg("any_thread"), nb::arg("engine").none())
      .def("use", &Communicator::use, nb::arg("nccl"));
  nb::class_<Nccl>(module, "Nccl")
      .def(nb::init<const nb::bytes&, std::int32_t, std::int32_t, std::int32_t>(), nb::arg("id"),
           nb::arg("size"), nb::arg("rank"), nb::arg("device"));
  module.def("nccl_unique_id", &Nccl::unique_id);
  module.def("run_distributed", &run, nb::arg("operation"), nb::arg("caller"), nb::arg("tensors"),
             nb::arg("options"), nb::arg("communicator"), nb::arg("whole"),
             nb::arg("stream").none(), nb::arg("threads").none());
  module.def("refuse_distributed", &refuse, nb::arg("communicator"), nb::arg("timeout"));
  module.def("token_ranges", &token_ranges, nb::arg("schedule"), nb::arg("length"), nb::arg("size"),
             nb::arg("rank"));
  module.def("choose_schedule", &choose_schedule, nb::arg("caller"), nb::arg("options"),
             nb::arg("batch"), nb::arg("size"), nb::arg("q_len"), nb::arg("k_len"));
}

}  // namespace tilewise::python
