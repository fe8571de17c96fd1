#include "registry/support.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>

#include "cuda/host/runtime.h"
#include "problem/tensors.h"
#include "verify/device_copy.h"
#include "verify/oracle.h"

namespace tilewise::tests {
namespace {

bool is_cuda_reference(const Kernel& kernel) {
  return std::string(kernel.name) == "cuda_reference";
}

// Returns whether this run tests the kernel (by its name in $TILEWISE_TEST_KERNEL) and its device
// (cpu or cuda in $TILEWISE_TEST_DEVICE).
bool is_asked_for(const Kernel& kernel) {
  const char* const name = std::getenv("TILEWISE_TEST_KERNEL");
  if (name != nullptr && name[0] != '\0' && std::string(kernel.name) != name) return false;
  const char* const device = std::getenv("TILEWISE_TEST_DEVICE");
  if (device == nullptr || device[0] == '\0') return true;
  return (kernel.device == TILEWISE_CUDA) == (std::string(device) == "cuda");
}

// True for head dimensions that the kernel leaves to the reference.
bool is_too_wide(const Kernel& kernel, const Case& description) {
  constexpr std::int64_t kMost = 256;
  return kernel.device == TILEWISE_CUDA && !is_cuda_reference(kernel) &&
         std::max(description.head_dim, description.value_dim) > kMost;
}

// True for dropout of cases of several calls, and for windows as long as any sequence, which fast
// kernels of a device leave to the reference.
bool lacks_parts(const Kernel& kernel, const Case& description) {
  const std::int64_t right = description.causal ? 0 : description.window_right;
  const bool is_endless = std::max(description.window_left, right) == INT64_MAX;
  return kernel.device == TILEWISE_CUDA && !is_cuda_reference(kernel) && description.is_cut() &&
         (description.dropout_p > 0 || is_endless);
}

// True for gradients that the kernel leaves to the reference.
bool lacks_gradient(const Kernel& kernel, const Case& description) {
  const std::string name = kernel.name;
  return (name == "cuda_sm80" || name == "cuda_fp32") &&
         description.operation == Operation::kBackward && description.alibi &&
         (description.gradients & verify::kDAlibiSlopes) != 0;
}

// True for a paged cache of fp32, which a device leaves to the reference.
bool lacks_pages(const Kernel& kernel, const Case& description) {
  return std::string(kernel.name) == "cuda_fp32" && description.page_size > 0;
}

// True for a score function that the kernel cannot call.
bool lacks_score_function(const Kernel& kernel, const Case& description) {
  const bool calls = kernel.device == TILEWISE_CPU && std::string(kernel.name) != "cpu_amx";
  return description.score_function && !calls;
}

// True for cases that the kernel, which machine_runs(), refuses by design.
bool leaves(const Kernel& kernel, const Case& description) {
  return is_too_wide(kernel, description) || lacks_gradient(kernel, description) ||
         lacks_pages(kernel, description) || lacks_score_function(kernel, description) ||
         lacks_parts(kernel, description);
}

// Returns whether a kernel of a device supports the dtype.
bool cuda_serves(const Kernel& kernel, std::int32_t dtype) {
  if (is_cuda_reference(kernel)) return true;
  if (std::string(kernel.name) == "cuda_fp32") return dtype == TILEWISE_FP32;
  return dtype == TILEWISE_BF16 || dtype == TILEWISE_FP16;
}

}  // namespace

std::string operation_and_dtype(Operation operation, std::int32_t dtype) {
  return std::string(operation == Operation::kForward ? "forward_" : "backward_") +
         problem::dtype_name(dtype);
}

bool is_partial(const Kernel& kernel) {
  const std::string name = kernel.name;
  return name == "cuda_decode" || name == "cuda_sm90" || name == "cuda_flash1" ||
         name == "cuda_standard";
}

bool machine_has(const std::string& target) {
  for (std::int32_t i = 0; i < tilewise_cpu_target_count(); ++i) {
    if (target == tilewise_cpu_target_name(i)) return tilewise_cpu_target_available(i) != 0;
  }
  return false;
}

bool machine_runs(const Kernel& kernel, std::int32_t dtype) {
  if (kernel.device == TILEWISE_CUDA) {
    return cuda::device_count() > 0 && !is_partial(kernel) && cuda_serves(kernel, dtype);
  }
  constexpr const char* kPrefix = "cpu_";
  const std::string name = kernel.name;
  if (name.rfind(kPrefix, 0) != 0) return true;
  const std::string target = name.substr(std::strlen(kPrefix));
  const char* const forced = std::getenv("TILEWISE_CPU_TARGET");
  const bool is_forced = forced != nullptr && forced[0] != '\0';
  // These instruction sets have kernels for bf16 (amx: for fp16 too), and leave the other dtypes to
  // the instruction set that they extend.
  const auto is_16_bit_target = [](const std::string& x) {
    return x == "amx" || x == "avx512_bf16";
  };
  const bool is_fp16 = target == "amx" && dtype == TILEWISE_FP16;
  if (is_16_bit_target(target) && dtype != TILEWISE_BF16 && !is_fp16) return false;
  const bool serves = is_forced && is_16_bit_target(forced) && target == "avx512";
  if (is_forced && target != forced && !serves) return false;
  return machine_has(target);
}

std::vector<const Kernel*> runnable_kernels(Operation operation, std::int32_t dtype) {
  std::vector<const Kernel*> runnable;
  for (const Kernel* kernel : plan::kernels(operation)) {
    if (is_asked_for(*kernel) && machine_runs(*kernel, dtype)) runnable.push_back(kernel);
  }
  return runnable;
}

std::vector<const Kernel*> runnable_kernels(const Case& description) {
  std::vector<const Kernel*> runnable = runnable_kernels(description.operation, description.dtype);
  std::erase_if(runnable, [&](const Kernel* kernel) { return leaves(*kernel, description); });
  return runnable;
}

std::vector<const Kernel*> host_kernels(Operation operation) {
  std::vector<const Kernel*> kernels = runnable_kernels(operation);
  std::erase_if(kernels, [](const Kernel* kernel) { return kernel->device != TILEWISE_CPU; });
  return kernels;
}

namespace {

// Adds the partial kernels that support the request.
std::vector<const Kernel*> with_partial_kernels(std::vector<const Kernel*> taking,
                                                Operation operation,
                                                const tilewise_problem& request) {
  if (cuda::device_count() == 0) return taking;
  const verify::DeviceCopy copy(operation, request);
  for (const Kernel* kernel : plan::kernels(operation)) {
    if (!is_asked_for(*kernel) || !is_partial(*kernel)) continue;
    plan::Options options;
    options.kernel = kernel->name;
    plan::Plan plan;
    if (plan::make_plan(operation, copy.request(), options, &plan) == TILEWISE_OK)
      taking.push_back(kernel);
  }
  return taking;
}

}  // namespace

std::vector<const Kernel*> kernels_for(Operation operation, std::int32_t dtype,
                                       const tilewise_problem& request) {
  return with_partial_kernels(runnable_kernels(operation, dtype), operation, request);
}

std::vector<const Kernel*> kernels_for(const Instance& instance) {
  const Case& c = instance.description();
  return with_partial_kernels(runnable_kernels(c), c.operation, instance.request());
}

void expect_passes(const char* kernel, const Case& description, const verify::Judge::Edit& edit) {
  verify::Judge judge(description, edit);
  const verify::Verdict verdict = judge.judge(kernel);
  EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << kernel << ": " << verdict.text << "\n"
                                                      << describe(description);
}

void expect_all_pass(const Case& description, const verify::Judge::Edit& edit) {
  verify::Judge judge(description, edit);
  for (const Kernel* kernel : plan::kernels(description.operation)) {
    if (!is_asked_for(*kernel)) continue;
    const verify::Verdict verdict = judge.judge(kernel->name);
    const bool runs = machine_runs(*kernel, description.dtype) && !leaves(*kernel, description);
    const auto expected = runs ? verify::Verdict::kPassed : verify::Verdict::kUnsupported;
    const bool may_pass = cuda::device_count() > 0 && is_partial(*kernel) &&
                          verdict.result == verify::Verdict::kPassed;
    if (may_pass) continue;
    EXPECT_EQ(verdict.result, expected) << kernel->name << ": " << verdict.text << "\n"
                                        << describe(description);
  }
}

Case make_case(Operation operation, std::int32_t dtype, const std::vector<std::int64_t>& sizes) {
  Case c;
  c.operation = operation;
  c.dtype = dtype;
  c.batch = sizes.at(0);
  c.q_len = sizes.at(1);
  c.k_len = sizes.at(2);
  c.heads = sizes.at(3);
  c.kv_heads = sizes.at(4);
  c.head_dim = sizes.at(5);
  c.value_dim = sizes.at(5);
  c.seed = run_seed();
  return c;
}

void give_forward_results(Instance& instance) {
  if (instance.description().operation == Operation::kForward) return;
  verify::Oracle oracle(instance.request());
  oracle.run(Operation::kForward);
  instance.set_forward_results(oracle.results());
}

namespace {

// An output element that the kernel does not write stays NaN.
void poison_outputs(Operation operation, const tilewise_problem& request) {
  for (const problem::NamedTensor& named : problem::kTensors) {
    if (named.role(operation) == problem::Role::kOutput) verify::poison(request.*named.member);
  }
}

}  // namespace

problem::Status run_kernel(const char* kernel, Operation operation, const tilewise_problem& request,
                           const RunSetup& setup) {
  plan::Options options;
  options.kernel = kernel;
  options.max_concurrency = setup.concurrency;
  if (setup.concurrency == 0 && setup.executor != nullptr) {
    options.max_concurrency = setup.executor->max_concurrency;
  }
  const Kernel* const named = plan::find_kernel(operation, kernel);
  if (named != nullptr && named->device == TILEWISE_CUDA) {
    poison_outputs(operation, request);
    const verify::CopiedRun copied = verify::run_on_device(operation, request, options, setup.fill);
    EXPECT_EQ(copied.damage, "") << kernel;
    return copied.status;
  }
  plan::Plan plan;
  const problem::Status planned = plan::make_plan(operation, request, options, &plan);
  if (planned != TILEWISE_OK) return planned;
  poison_outputs(operation, request);
  const verify::Memory workspace(static_cast<std::size_t>(plan.workspace_bytes));
  std::memset(workspace.data(), setup.fill, workspace.bytes());
  plan::RunOptions run;
  run.workspace = workspace.data();
  run.workspace_bytes = workspace.bytes();
  run.executor = setup.executor;
  run.traffic = setup.traffic;
  return plan::run_plan(plan, request, run);
}

problem::Status run_call(const char* kernel, Operation operation, const tilewise_problem& call) {
  plan::Options options;
  options.kernel = kernel;
  const Kernel* const named = plan::find_kernel(operation, kernel);
  if (named != nullptr && named->device == TILEWISE_CUDA) {
    const verify::CopiedRun copied = verify::run_on_device(operation, call, options);
    EXPECT_EQ(copied.damage, "") << kernel;
    return copied.status;
  }
  plan::Plan plan;
  const problem::Status planned = plan::make_plan(operation, call, options, &plan);
  if (planned != TILEWISE_OK) return planned;
  const verify::Memory workspace(static_cast<std::size_t>(plan.workspace_bytes));
  plan::RunOptions run;
  run.workspace = workspace.data();
  run.workspace_bytes = workspace.bytes();
  return plan::run_plan(plan, call, run);
}

std::vector<std::uint64_t> tensor_bits(const tilewise_tensor& tensor) {
  std::vector<std::uint64_t> bits;
  const std::int64_t size = problem::dtype_size(tensor.dtype);
  verify::for_each_element(tensor, [&](std::int64_t, std::int64_t offset) {
    std::uint64_t element = 0;
    std::memcpy(&element, static_cast<const char*>(tensor.data) + offset * size,
                static_cast<std::size_t>(size));
    bits.push_back(element);
  });
  return bits;
}

std::vector<std::uint64_t> output_bits(Operation operation, const tilewise_problem& request) {
  std::vector<std::uint64_t> bits;
  for (const problem::NamedTensor& tensor : problem::kTensors) {
    if (tensor.role(operation) != problem::Role::kOutput) continue;
    const std::vector<std::uint64_t> more = tensor_bits(request.*tensor.member);
    bits.insert(bits.end(), more.begin(), more.end());
  }
  return bits;
}

std::vector<std::uint64_t> run_for_bits(const char* kernel, Instance& instance,
                                        const RunSetup& setup) {
  const Operation operation = instance.description().operation;
  instance.prepare(operation);
  const problem::Status status = run_kernel(kernel, operation, instance.request(), setup);
  EXPECT_EQ(status, TILEWISE_OK) << kernel << ": " << problem::message();
  EXPECT_EQ(instance.damage(operation), "") << kernel << describe(instance.description());
  return output_bits(operation, instance.request());
}

RowIndex row_index(const tilewise_tensor& tensor, std::int32_t layout, std::int64_t number) {
  std::int64_t index[TILEWISE_MAX_RANK] = {0, 0, 0, 0};
  for (int d = tensor.rank - 1; d >= 0; --d) {
    index[d] = number % tensor.shape[d];
    number /= tensor.shape[d];
  }
  if (tensor.rank == 3) return {0, index[0], index[1], index[2]};
  if (layout == TILEWISE_BHSD) return {index[0], index[2], index[1], index[3]};
  return {index[0], index[1], index[2], index[3]};
}

ShuffledExecutor::ShuffledExecutor(std::int32_t threads, std::uint64_t seed)
    : threads_(threads), seed_(seed) {
  tilewise_executor_init(&executor_);
  executor_.max_concurrency = threads;
  executor_.self = this;
  executor_.parallel_for = parallel_for;
}

void ShuffledExecutor::parallel_for(void* self, std::int64_t n, void (*fn)(void*, std::int64_t),
                                    void* context) {
  const ShuffledExecutor& executor = *static_cast<const ShuffledExecutor*>(self);
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  Random random(executor.seed_);
  for (std::size_t i = order.size(); i > 1; --i) {
    const std::int64_t other = random.between(0, static_cast<std::int64_t>(i) - 1);
    std::swap(order[i - 1], order[static_cast<std::size_t>(other)]);
  }
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < order.size(); i = next++) fn(context, order[i]);
  };
  std::vector<std::thread> helpers;
  for (std::int32_t t = 1; t < executor.threads_; ++t) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace tilewise::tests
