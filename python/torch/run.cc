#include "run.h"

#include <atomic>
#include <memory>

#include "tensor.h"

namespace tilewise::torch_binding {
namespace {

void check_status(tilewise_status status) {
  if (status != TILEWISE_OK) raise(tilewise_last_error());
}

// The CPU operators use PyTorch's own threads, so that one setting (torch.set_num_threads) serves
// both and no second pool waits next to PyTorch's. Threads take items one by one, since items
// differ in length.
struct Items {
  std::atomic<std::int64_t> next = 0;
  std::int64_t count;
  void (*fn)(void* context, std::int64_t item);
  void* context;
};

void run_items(std::int64_t, std::int64_t, void* context) {
  Items& items = *static_cast<Items*>(context);
  for (std::int64_t i = items.next++; i < items.count; i = items.next++) items.fn(items.context, i);
}

void parallel_for(void* self, std::int64_t n, void (*fn)(void*, std::int64_t), void* context) {
  Items items{.count = n, .fn = fn, .context = context};
  const std::int64_t threads = *static_cast<const std::uint32_t*>(self);
  if (n <= 1 || threads <= 1 ||
      torch().torch_parallel_for(0, threads < n ? threads : n, 1, run_items, &items) != 0) {
    run_items(0, 1, &items);  // the remaining items, also after a failure: no item is lost
  }
}

// Below this number of products, waking PyTorch's threads costs more than they save: about 5 us, in
// which one core computes several hundred thousand.
constexpr double kSmallProblem = 1 << 18;

bool is_small(const tilewise_problem& problem) {
  double products = 1;
  for (std::int32_t d = 0; d < problem.q.rank; ++d)
    products *= static_cast<double>(problem.q.shape[d]);
  const std::int32_t keys = problem.k.rank == 3 ? 0 : problem.layout == TILEWISE_BHSD ? 2 : 1;
  return products * static_cast<double>(problem.k.shape[keys]) < kSmallProblem;
}

void run_on_cpu(std::int32_t operation, const tilewise_problem& problem) {
  std::uint32_t threads = 1;
  if (!is_small(problem)) {
    check(torch().torch_get_num_threads(&threads), "PyTorch's number of threads");
  }
  tilewise_executor executor;
  tilewise_executor_init(&executor);
  executor.max_concurrency = static_cast<std::int32_t>(threads);
  executor.parallel_for = parallel_for;
  executor.self = &threads;
  check_status(operation == TILEWISE_FORWARD ? tilewise_forward(&problem, &executor)
                                             : tilewise_backward(&problem, &executor));
}

class DeviceGuard {
 public:
  explicit DeviceGuard(std::int32_t device) {
    check(torch().aoti_torch_create_device_guard(device, &guard_), "no such CUDA device");
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() { torch().aoti_torch_delete_device_guard(guard_); }

 private:
  DeviceGuardOpaque* guard_ = nullptr;
};

struct DestroyPlan {
  void operator()(tilewise_plan* plan) const { tilewise_plan_destroy(plan); }
};

// Runs on the current stream, with a workspace from PyTorch's caching allocator: nothing waits, and
// a CUDA graph can capture it.
void run_on_cuda(std::int32_t operation, const tilewise_problem& problem) {
  const std::int32_t device = problem.q.device_index;
  if (torch().aoti_torch_get_current_cuda_stream == nullptr) {
    raise("this PyTorch was built without CUDA");
  }
  const DeviceGuard guard(device);
  tilewise_executor executor;
  tilewise_executor_init(&executor);
  check(torch().aoti_torch_get_current_cuda_stream(device, &executor.stream), "no CUDA stream");
  tilewise_plan* created = nullptr;
  check_status(tilewise_plan_create(operation, &problem, nullptr, &created));
  const std::unique_ptr<tilewise_plan, DestroyPlan> plan(created);
  std::size_t bytes = 0;
  std::size_t alignment = 0;
  check_status(tilewise_plan_workspace(plan.get(), &bytes, &alignment));
  const auto size = static_cast<std::int64_t>(bytes);
  const std::int64_t stride = 1;
  const Owned workspace = allocate(1, &size, &stride, torch().aoti_torch_dtype_uint8(), problem.q);
  void* memory = nullptr;
  check(torch().aoti_torch_get_data_ptr(workspace.get(), &memory), "a workspace without memory");
  check_status(tilewise_plan_run(plan.get(), &problem, memory, bytes, &executor));
}

}  // namespace

void run(std::int32_t operation, const tilewise_problem& problem) {
  problem.q.device == TILEWISE_CUDA ? run_on_cuda(operation, problem)
                                    : run_on_cpu(operation, problem);
}

}  // namespace tilewise::torch_binding
