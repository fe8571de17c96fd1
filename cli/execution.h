// Plans and runs kernels, and times them.
#pragma once

#include <memory>
#include <string>

#include "cuda/host/runtime.h"
#include "flags.h"
#include "plan/plan.h"
#include "plan/pool.h"
#include "verify/device_copy.h"

namespace tilewise::cli {

// The executor that --device and --threads select. Throws UsageError for a missing device.
class Executor {
 public:
  explicit Executor(const Flags& flags);
  std::int32_t threads() const { return pool_->threads(); }
  const tilewise_executor* get() const { return &executor_; }
  bool on_cuda() const { return on_cuda_; }

 private:
  bool on_cuda_ = false;
  std::unique_ptr<plan::Pool> pool_;
  tilewise_executor executor_;
};

// The workspace of one plan, in a memory mapping of its own: pages that no run touches cost
// nothing.
class Workspace {
 public:
  explicit Workspace(std::int64_t bytes);  // throws UsageError if there is not enough memory
  void* data() const { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t bytes_;
};

// A plan for a problem, by the library's choice or the forced kernel, with a workspace, on the
// executor's device (to which the tensors are copied). Throws UsageError with the library's
// message.
class Runner {
 public:
  Runner(problem::Operation operation, const tilewise_problem& request, const std::string& kernel,
         const Executor& executor);

  // Runs once and returns the seconds, by the device's clock if there is one.
  double run(problem::Traffic* traffic = nullptr, std::int64_t sram_bytes = 0);

  // Copies the problem's tensors to the device again, after another runner has written some.
  void send();

  // Copies the results of the runs from the device to the problem's tensors.
  void fetch();

  const plan::Plan& plan() const { return plan_; }
  const char* kernel() const { return plan_.kernel->name; }

 private:
  const tilewise_problem& request_;
  const Executor& executor_;
  plan::Plan plan_;
  std::unique_ptr<Workspace> workspace_;
  std::unique_ptr<verify::DeviceCopy> copy_;  // nullptr on the CPU, as are the next two
  std::unique_ptr<verify::DeviceMemory> device_workspace_;
  std::unique_ptr<cuda::Stopwatch> stopwatch_;
};

double now_seconds();  // of a monotonic clock

// Returns the bytes that can be allocated without swapping, according to the system; INT64_MAX if
// it does not say.
std::int64_t available_memory();

}  // namespace tilewise::cli
