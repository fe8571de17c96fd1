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

constexpr const char* kCapsule = "tilewise_token_plan";

// `mask` holds the options that describe the mask, `heads` the number of query heads or None, and
// `sizes` is (q_len, k_len, size, chunk_rows, stages).
nb::capsule make_token_plan(const char* caller, const nb::dict& mask, nb::handle heads,
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
  return nb::capsule(plan, kCapsule, [](void* owned) noexcept {
    tilewise_token_plan_destroy(static_cast<tilewise_token_plan*>(owned));
  });
}

// Returns the values of tilewise.distributed.TokenPlanInfo.
nb::tuple token_plan_info(nb::handle plan) {
  tilewise_token_plan_info info;
  tilewise_token_plan_info_init(&info);
  check(tilewise_token_plan_describe(token_plan_of(plan), &info));
  return nb::make_tuple(info.q_len, info.k_len, info.size, info.chunk_rows, info.stages, info.area,
                        info.largest_area, info.area_lower_bound, info.imbalance,
                        info.received_rows);
}

// Returns the values of tilewise.distributed.RankInfo.
nb::tuple token_plan_rank_info(nb::handle plan, nb::handle rank) {
  tilewise_token_plan_rank_info info;
  tilewise_token_plan_rank_info_init(&info);
  check(tilewise_token_plan_describe_rank(token_plan_of(plan), small_integer("rank", rank), &info));
  return nb::make_tuple(info.q_rows, info.k_rows, info.area, info.sent_rows, info.received_rows);
}

nb::list token_plan_ranges(nb::handle plan, std::int32_t side, nb::handle rank) {
  const tilewise_token_range* ranges = nullptr;
  std::int64_t count = 0;
  check(tilewise_token_plan_ranges(token_plan_of(plan), side, small_integer("rank", rank), &ranges,
                                   &count));
  nb::list list;
  for (std::int64_t r = 0; r < count; ++r)
    list.append(nb::make_tuple(ranges[r].begin, ranges[r].end, ranges[r].stride));
  return list;
}

}  // namespace

const tilewise_token_plan* token_plan_of(nb::handle capsule) {
  if (capsule.is_none()) return nullptr;
  const void* const plan = PyCapsule_GetPointer(capsule.ptr(), kCapsule);
  if (plan == nullptr) nb::raise_python_error();
  return static_cast<const tilewise_token_plan*>(plan);
}

void bind_token_plan(nb::module_& module) {
  module.attr("QUERIES") = static_cast<int>(TILEWISE_QUERIES);
  module.attr("KEYS") = static_cast<int>(TILEWISE_KEYS);
  module.def("make_token_plan", &make_token_plan, nb::arg("caller"), nb::arg("mask"),
             nb::arg("heads").none(), nb::arg("sizes"));
  module.def("token_plan_info", &token_plan_info, nb::arg("plan"));
  module.def("token_plan_rank_info", &token_plan_rank_info, nb::arg("plan"), nb::arg("rank"));
  module.def("token_plan_ranges", &token_plan_ranges, nb::arg("plan"), nb::arg("side"),
             nb::arg("rank"));
}

}  // namespace tilewise::python
