#include "token_plan.h"

#include "call.h"
#include "errors.h"

namespace nb = nanobind;

namespace tilewise::python {
namespace {

// The library says which numbers it takes, of those that fit.
std::int32_t small_integer(const char* name, nb::handle value) {
  const std::int64_t number = integer(name, value);
  const auto result = static_cast<std::int32_t>(number);
  if (result == number) return result;
  raise(PyExc_ValueError, "%s: is %lld, must be at most 2^31 - 1", name,
        static_cast<long long>(number));
}

}  // namespace

HeldTokenPlan::HeldTokenPlan(const char* caller, const nb::dict& mask, nb::handle heads,
                             const nb::tuple& sizes) {
  tilewise_token_plan_options options;
  tilewise_token_plan_options_init(&options);
  options.q_len = integer("q_len", sizes[0]);
  options.k_len = integer("k_len", sizes[1]);
  options.size = small_integer("size", sizes[2]);
  options.chunk_rows = integer("chunk_rows", sizes[3]);
  options.stages = integer("stages", sizes[4]);
  Call call(0);
  call.set_options(caller, mask);
  tilewise_problem problem = call.problem();
  if (!heads.is_none()) {
    const std::int64_t shape[] = {options.q_len, integer("heads", heads), 1};
    problem.q = tilewise_contiguous(nullptr, TILEWISE_FP32, 3, shape);
  }
  tilewise_token_plan* plan = nullptr;
  tilewise_status status;
  {
    const nb::gil_scoped_release released;
    status = tilewise_token_plan_create(&problem, &options, &plan);
  }
  check(status);
  plan_.reset(plan);
}

nb::tuple HeldTokenPlan::info() const {
  tilewise_token_plan_info info;
  tilewise_token_plan_info_init(&info);
  check(tilewise_token_plan_describe(get(), &info));
  return nb::make_tuple(info.q_len, info.k_len, info.size, info.chunk_rows, info.stages, info.area,
                        info.largest_area, info.area_lower_bound, info.imbalance,
                        info.received_rows);
}

nb::tuple HeldTokenPlan::info_of(nb::handle rank) const {
  tilewise_token_plan_rank_info info;
  tilewise_token_plan_rank_info_init(&info);
  check(tilewise_token_plan_describe_rank(get(), small_integer("rank", rank), &info));
  return nb::make_tuple(info.q_rows, info.k_rows, info.area, info.sent_rows, info.received_rows);
}

nb::list HeldTokenPlan::ranges_of(std::int32_t side, nb::handle rank) const {
  const tilewise_token_range* ranges = nullptr;
  std::int64_t count = 0;
  check(tilewise_token_plan_ranges(get(), side, small_integer("rank", rank), &ranges, &count));
  nb::list list;
  for (std::int64_t r = 0; r < count; ++r)
    list.append(nb::make_tuple(ranges[r].begin, ranges[r].end, ranges[r].stride));
  return list;
}

void bind_token_plan(nb::module_& module) {
  module.attr("QUERIES") = static_cast<int>(TILEWISE_QUERIES);
  module.attr("KEYS") = static_cast<int>(TILEWISE_KEYS);
  nb::class_<HeldTokenPlan>(module, "TokenPlan")
      .def(nb::init<const char*, const nb::dict&, nb::handle, const nb::tuple&>(),
           nb::arg("caller"), nb::arg("mask"), nb::arg("heads").none(), nb::arg("sizes"))
      .def("info", &HeldTokenPlan::info)
      .def("info_of", &HeldTokenPlan::info_of, nb::arg("rank"))
      .def("ranges_of", &HeldTokenPlan::ranges_of, nb::arg("side"), nb::arg("rank"));
}

}  // namespace tilewise::python
