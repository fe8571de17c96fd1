// tilewise._core: the C interface for Python. The functions for users are in python/tilewise; the
// functions here take all their arguments by position.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <tilewise/tilewise.hpp>

#include "append.h"
#include "call.h"
#include "distributed.h"
#include "errors.h"
#include "plan.h"
#include "quantise.h"
#include "slots.h"

namespace nb = nanobind;

namespace tilewise::python {
namespace {

// Runs an operation once. `tensors` are in the order of slots.h.
void run(std::int32_t operation, const char* caller, const nb::tuple& tensors,
         const nb::dict& options, nb::handle stream, nb::handle threads) {
  Call call(stream_number(stream));
  set_slots(operation, tensors, &call);
  call.set_options(caller, options);
  const Executor executor(threads, call.stream());
  const auto work = operation == TILEWISE_FORWARD ? tilewise_forward : tilewise_backward;
  tilewise_status status;
  {
    const nb::gil_scoped_release released;
    status = work(&call.problem(), executor.get());
  }
  check(status);
}

std::unique_ptr<Plan> make_plan(std::int32_t operation, const char* caller,
                                const nb::tuple& tensors, const nb::dict& options,
                                nb::handle kernel, nb::handle cpu_target, nb::handle threads) {
  Call call(0);
  set_slots(operation, tensors, &call);
  call.set_options(caller, options);
  tilewise_plan_options plan_options;
  tilewise_plan_options_init(&plan_options);
  if (!kernel.is_none()) plan_options.kernel = text_of("kernel", kernel);
  if (!cpu_target.is_none()) plan_options.cpu_target = text_of("cpu_target", cpu_target);
  plan_options.max_concurrency = Executor(threads, 0).max_concurrency();
  return std::make_unique<Plan>(operation, call.problem(), plan_options);
}

// Runs a plan on tensors of its shapes. `options` holds the tensors among the options, and the
// options that may differ from the plan.
void run_plan(Plan& plan, const char* caller, const nb::tuple& tensors, const nb::dict& options,
              nb::handle workspace, nb::handle stream) {
  Call call(plan.problem(), stream_number(stream));
  set_slots(plan.operation(), tensors, &call);
  call.set_options(caller, options);
  Array memory;
  if (!workspace.is_none())
    memory = read_array("workspace", workspace, Access::kWrite, call.stream());
  const std::int32_t threads = plan.max_concurrency();
  const nb::object count = threads > 0 ? nb::object(nb::int_(threads)) : nb::none();
  const Executor executor(count, call.stream());
  plan.run(call, executor.get(), workspace.is_none() ? nullptr : &memory.tensor);
}

nb::list kernels(std::int32_t operation) {
  nb::list names;
  for (std::int32_t i = 0; tilewise_kernel_name(operation, i) != nullptr; ++i)
    names.append(nb::str(tilewise_kernel_name(operation, i)));
  return names;
}

}  // namespace
}  // namespace tilewise::python

NB_MODULE(_core, module) {
  using namespace tilewise::python;
  module.attr("version") = tilewise_version();
  module.attr("FORWARD") = static_cast<int>(TILEWISE_FORWARD);
  module.attr("BACKWARD") = static_cast<int>(TILEWISE_BACKWARD);
  module.def("run", &run, nb::arg("operation"), nb::arg("caller"), nb::arg("tensors"),
             nb::arg("options"), nb::arg("stream").none(), nb::arg("threads").none());
  module.def("make_plan", &make_plan, nb::arg("operation"), nb::arg("caller"), nb::arg("tensors"),
             nb::arg("options"), nb::arg("kernel").none(), nb::arg("cpu_target").none(),
             nb::arg("threads").none());
  module.def("run_plan", &run_plan, nb::arg("plan"), nb::arg("caller"), nb::arg("tensors"),
             nb::arg("options"), nb::arg("workspace").none(), nb::arg("stream").none());
  module.def("kernels", &kernels, nb::arg("operation"));
  module.def("info", &tilewise::info);
  nb::class_<Plan>(module, "Plan")
      .def_prop_ro("kernel", &Plan::kernel)
      .def_prop_ro("reason", &Plan::reason)
      .def_prop_ro("workspace_bytes", &Plan::workspace_bytes);
  bind_distributed(module);
  bind_append(module);
  bind_quantise(module);
}
