// A plan that Python holds, with workspaces for the threads that run it.
#pragma once

#include <nanobind/nanobind.h>
#include <tilewise/tilewise.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "call.h"

namespace tilewise::python {

class Plan {
 public:
  // Throws the exceptions of check().
  Plan(std::int32_t operation, const tilewise_problem& problem,
       const tilewise_plan_options& options);
  ~Plan();
  Plan(const Plan&) = delete;

  std::int32_t operation() const { return operation_; }
  std::string kernel() const { return tilewise_plan_kernel(plan_); }
  std::string reason() const { return tilewise_plan_reason(plan_); }
  std::size_t workspace_bytes() const { return bytes_; }
  std::int32_t max_concurrency() const { return max_concurrency_; }
  const tilewise_problem& problem() const { return problem_; }  // its pointers are unused

  // Runs without the GIL. With `workspace` NULL the run uses a workspace of the plan, which makes
  // at most one for each thread that runs at the same time; a plan for CUDA has none.
  void run(const Call& call, const tilewise_executor* executor, const tilewise_tensor* workspace);

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  using Workspace = std::unique_ptr<void, Free>;
  Workspace take();
  void give_back(Workspace workspace);

  std::int32_t operation_;
  std::int32_t max_concurrency_;
  tilewise_problem problem_;
  tilewise_plan* plan_ = nullptr;
  std::size_t bytes_ = 0, alignment_ = 1;
  std::mutex mutex_;
  std::vector<Workspace> idle_;
};

}  // namespace tilewise::python
