#include "verify/oracle.h"

#include <stdexcept>
#include <string>

#include "plan/plan.h"
#include "problem/tensors.h"
#include "verify/plain.h"

namespace tilewise::verify {
namespace {

void check(problem::Status status) {
  if (status != TILEWISE_OK) {
    throw std::runtime_error(std::string("the fp64 oracle: ") + problem::message());
  }
}

void run_kernel(const char* kernel, problem::Operation operation, const tilewise_problem& request) {
  plan::Options options;
  options.kernel = kernel;
  plan::Plan plan;
  check(plan::make_plan(operation, request, options, &plan));
  const Memory workspace(static_cast<std::size_t>(plan.workspace_bytes));
  plan::RunOptions run;
  run.workspace = workspace.data();
  run.workspace_bytes = workspace.bytes();
  check(plan::run_plan(plan, request, run));
}

}  // namespace

Oracle::Oracle(const tilewise_problem& request)
    : dtype_(request.q.dtype), values_(request, TILEWISE_FP64), twin_(values_.request()) {
  static constexpr tilewise_tensor tilewise_problem::*kWidened[] = {
      &tilewise_problem::q,    &tilewise_problem::k,    &tilewise_problem::v,
      &tilewise_problem::bias, &tilewise_problem::dout, &tilewise_problem::dlse};
  static constexpr tilewise_tensor tilewise_problem::*kResults[] = {
      &tilewise_problem::out,          &tilewise_problem::dq,    &tilewise_problem::dk,
      &tilewise_problem::dv,           &tilewise_problem::dbias, &tilewise_problem::dsink,
      &tilewise_problem::dalibi_slopes};
  for (const auto member : kWidened) {
    const tilewise_tensor& tensor = values_.request().*member;
    if (problem::present(tensor) && tensor.dtype != TILEWISE_FP64)
      twin_.*member = owner_.copy(TILEWISE_FP64, tensor);
  }
  for (const auto member : kResults) {
    const tilewise_tensor& tensor = request.*member;
    if (!problem::present(tensor)) continue;
    twin_.*member = owner_.make(TILEWISE_FP64, tensor.rank, tensor.shape);
  }
  twin_.phi = twin_.phi_fallbacks = {};  // it counts nothing
  // Backward needs lse even if the request has none.
  const bool packed = request.q.rank == 3;
  const bool heads_first = request.layout == TILEWISE_BHSD;
  const std::int64_t dense[] = {request.q.shape[0], request.q.shape[heads_first ? 1 : 2],
                                request.q.shape[heads_first ? 2 : 1]};
  const std::int64_t tokens[] = {request.q.shape[1], request.q.shape[0]};
  twin_.lse = owner_.make(TILEWISE_FP64, packed ? 2 : 3, packed ? tokens : dense);
}

void Oracle::run(problem::Operation operation, Method method) {
  const auto run = [&](problem::Operation pass) {
    if (method == kLinearMemory) {
      run_kernel("flash2", pass, twin_);
    } else if (dtype_ == TILEWISE_FP64) {
      run_extended(pass, twin_);
    } else {
      run_kernel("three_pass", pass, twin_);
    }
  };
  run(problem::Operation::kForward);
  if (operation == problem::Operation::kBackward) run(operation);
}

}  // namespace tilewise::verify
