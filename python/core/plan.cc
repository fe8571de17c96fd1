#include "plan.h"

#include <cstdlib>
#include <utility>

#include "errors.h"

namespace nb = nanobind;

namespace tilewise::python {

Plan::Plan(std::int32_t operation, const tilewise_problem& problem,
           const tilewise_plan_options& options)
    : operation_(operation), max_concurrency_(options.max_concurrency), problem_(problem) {
  check(tilewise_plan_create(operation, &problem, &options, &plan_));
  tilewise_plan_workspace(plan_, &bytes_, &alignment_);
}

Plan::~Plan() { tilewise_plan_destroy(plan_); }

void Plan::Free::operator()(void* memory) const { std::free(memory); }

namespace {

std::size_t bytes_of(const tilewise_tensor& array) {
  if (array.rank != 1 || array.strides[0] != 1)
    raise(PyExc_ValueError, "workspace: must be one contiguous row of numbers");
  const auto count = static_cast<std::size_t>(array.shape[0]);
  switch (array.dtype) {
    case TILEWISE_FP64:
    case TILEWISE_INT64:
      return count * 8;
    case TILEWISE_FP32:
    case TILEWISE_INT32:
      return count * 4;
    case TILEWISE_BF16:
    case TILEWISE_FP16:
      return count * 2;
    default:
      return count;
  }
}

}  // namespace

Plan::Workspace Plan::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      Workspace workspace = std::move(idle_.back());
      idle_.pop_back();
      return workspace;
    }
  }
  const std::size_t rounded = (bytes_ + alignment_ - 1) / alignment_ * alignment_;
  Workspace workspace(std::aligned_alloc(alignment_, rounded));
  if (workspace == nullptr) {
    raise(PyExc_MemoryError, "no memory for a workspace of %llu bytes",
          static_cast<unsigned long long>(bytes_));
  }
  return workspace;
}

void Plan::give_back(Workspace workspace) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(workspace));
}

void Plan::run(const Call& call, const tilewise_executor* executor,
               const tilewise_tensor* workspace) {
  const auto run_in = [&](void* memory, std::size_t bytes) {
    const nb::gil_scoped_release released;
    return tilewise_plan_run(plan_, &call.problem(), memory, bytes, executor);
  };
  if (workspace != nullptr) return check(run_in(workspace->data, bytes_of(*workspace)));
  if (bytes_ == 0) return check(run_in(nullptr, 0));
  if (problem_.q.device == TILEWISE_CUDA) {
    raise(PyExc_ValueError,
          "workspace: is missing; a plan for CUDA needs %llu bytes of the device's "
          "memory",
          static_cast<unsigned long long>(bytes_));
  }
  Workspace own = take();
  const tilewise_status status = run_in(own.get(), bytes_);
  give_back(std::move(own));
  check(status);
}

}  // namespace tilewise::python
