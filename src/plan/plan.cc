#include "plan/plan.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cpu/targets.h"
#include "cuda/host/runtime.h"
#include "math/integer.h"
#include "plan/pool.h"
#include "plan/registry.h"
#include "plan/thread_count.h"
#include "problem/tensors.h"
#include "problem/validate.h"

namespace tilewise::plan {
namespace {

using problem::fail;
using problem::Kernel;
using problem::Machine;
using problem::Operation;
using problem::Problem;
using problem::Status;

// A line of text of fixed capacity; text that does not fit is cut.
class Line {
 public:
  Line(char* text, std::size_t size) : text_(text), size_(size) { text_[0] = '\0'; }
  [[gnu::format(printf, 2, 3)]] void add(const char* format, ...) {
    std::va_list arguments;
    va_start(arguments, format);
    const int written = std::vsnprintf(text_ + used_, size_ - used_, format, arguments);
    va_end(arguments);
    if (written > 0) used_ += std::min(static_cast<std::size_t>(written), size_ - used_ - 1);
  }

 private:
  char* text_;
  std::size_t size_;
  std::size_t used_ = 0;
};

Status choose_forced(Operation operation, const char* name, const Machine& machine, Plan* plan) {
  plan->kernel = find_kernel(operation, name);
  Line reason(plan->reason, sizeof(plan->reason));
  if (plan->kernel == nullptr) {
    reason.add("kernel: is \"%.64s\", must be one of", name);
    for (const Kernel* kernel : kernels(operation)) reason.add(" %s", kernel->name);
    return fail(TILEWISE_INVALID_ARGUMENT, "%s", plan->reason);
  }
  reason.add("%s: forced by name", plan->kernel->name);
  return supports(*plan->kernel, plan->problem, machine);
}

Status choose_first(Operation operation, const Machine& machine, Plan* plan) {
  char refusals[384];
  Line refused(refusals, sizeof(refusals));
  for (const Kernel* kernel : kernels(operation)) {
    if (kernel->device != plan->problem.device) continue;  // too obvious to be a reason
    const char* const slower =
        kernel->slower != nullptr ? kernel->slower(plan->problem, machine) : nullptr;
    if (slower != nullptr) {
      problem::fail(TILEWISE_UNSUPPORTED, "%s", slower);
    } else if (supports(*kernel, plan->problem, machine) == TILEWISE_OK) {
      plan->kernel = kernel;
      std::snprintf(plan->reason, sizeof(plan->reason),
                    "%s: the first of the registry that supports the problem%s", kernel->name,
                    refusals);
      problem::clear_message();
      return TILEWISE_OK;
    }
    refused.add("; not %s: %s", kernel->name, problem::message());
  }
  if (refusals[0] == '\0') {
    return fail(TILEWISE_UNSUPPORTED, "q: is on %s, but this build has no kernel %s for it",
                problem::device_text(plan->problem.device, plan->problem.device_index).text,
                operation == Operation::kForward ? "forward" : "backward");
  }
  return fail(TILEWISE_UNSUPPORTED, "no kernel supports the problem%s", refusals);
}

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] != '\0' ? value : nullptr;
}

}  // namespace

const char* planned_difference(const Problem& a, const Problem& b) {
  const struct {
    const char* name;
    const problem::View Problem::*view;
  } views[] = {{"q", &Problem::q},
               {"k", &Problem::k},
               {"v", &Problem::v},
               {"out", &Problem::out},
               {"lse", &Problem::lse},
               {"dout", &Problem::dout},
               {"dlse", &Problem::dlse},
               {"dq", &Problem::dq},
               {"dk", &Problem::dk},
               {"dv", &Problem::dv},
               {"mask", &Problem::mask},
               {"bias", &Problem::bias},
               {"dbias", &Problem::dbias},
               {"alibi_slopes", &Problem::alibi_slopes},
               {"sink", &Problem::sink},
               {"dsink", &Problem::dsink},
               {"dalibi_slopes", &Problem::dalibi_slopes},
               {"phi", &Problem::phi},
               {"phi_fallbacks", &Problem::phi_fallbacks},
               {"q_descale", &Problem::q_descale},
               {"k_descale", &Problem::k_descale},
               {"v_descale", &Problem::v_descale}};
  if (a.device != b.device || a.device_index != b.device_index) return "q: device";
  for (const auto& [name, view] : views) {
    if ((a.*view).dtype != (b.*view).dtype) return name;
  }
  if (a.batch != b.batch || a.heads != b.heads || a.head_dim != b.head_dim || a.q_rows != b.q_rows)
    return "q";
  if (a.page_table.page_size != b.page_table.page_size ||
      a.page_table.columns != b.page_table.columns || a.page_table.pages != b.page_table.pages)
    return "page_table";
  if (a.kv_heads != b.kv_heads || a.k_rows != b.k_rows) return "k";
  if (a.value_dim != b.value_dim) return "v";
  if (a.q_packed != b.q_packed || a.cu_seqlens_q.present() != b.cu_seqlens_q.present())
    return "cu_seqlens_q";
  if (a.k_packed != b.k_packed || a.cu_seqlens_k.present() != b.cu_seqlens_k.present())
    return "cu_seqlens_k";
  if (a.max_q != b.max_q) return "max_seqlen_q";
  if (a.max_k != b.max_k) return "max_seqlen_k";
  if (a.seqused_q.present() != b.seqused_q.present()) return "seqused_q";
  if (a.seqused_k.present() != b.seqused_k.present()) return "seqused_k";
  if (a.slices.present() != b.slices.present() || a.slices.count != b.slices.count ||
      a.slices.columns != b.slices.columns)
    return "slices";
  if (std::memcmp(a.bias_shape, b.bias_shape, sizeof(a.bias_shape)) != 0) return "bias";
  if (a.slopes_per_batch != b.slopes_per_batch) return "dalibi_slopes";
  if (a.softcap != b.softcap) return "softcap";
  if (a.has_score_function() != b.has_score_function()) return "score_function";
  if (a.dropout_p != b.dropout_p) return "dropout_p";
  if (a.top_left != b.top_left) return "alignment";
  if (a.window_left != b.window_left) return "window_left";
  if (a.window_right != b.window_right) return "causal or window_right";
  if (a.deterministic != b.deterministic) return "deterministic";
  if (a.batch_invariant != b.batch_invariant) return "batch_invariant";
  if (a.accumulate != b.accumulate) return "accumulate";
  if (a.parts.present() != b.parts.present()) return "parts";
  return nullptr;
}

Status check_executor(const tilewise_executor& executor) {
  if (executor.struct_size < sizeof(tilewise_executor)) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "executor: struct_size is %zu, must be %zu; use tilewise_executor_init()",
                executor.struct_size, sizeof(tilewise_executor));
  }
  if (executor.max_concurrency < 1) {
    return fail(TILEWISE_INVALID_ARGUMENT, "executor: max_concurrency is %d, must be >= 1",
                executor.max_concurrency);
  }
  if (executor.parallel_for == nullptr)
    return fail(TILEWISE_INVALID_ARGUMENT, "executor: parallel_for is NULL");
  return TILEWISE_OK;
}

namespace {

Status run_problem(const Plan& plan, const Problem& problem, const RunOptions& options) {
  tilewise_executor executor;
  if (options.executor != nullptr) {
    if (const Status status = check_executor(*options.executor); status != TILEWISE_OK)
      return status;
    executor = *options.executor;
  } else {
    executor = default_pool()->executor();
  }
  const problem::RunContext context = {options.workspace, &executor,
                                       plan.concurrency,  options.sram_bytes,
                                       options.traffic,   options.contained_steps};
  return plan.kernel->run(problem, context);
}

// The memory of one run, on the device that the kernel reads.
class OwnWorkspace {
 public:
  OwnWorkspace(const Plan& plan, void* stream)
      : bytes_(static_cast<std::size_t>(plan.workspace_bytes)),
        problem_(plan.problem),
        stream_(stream) {
    if (bytes_ == 0) return;
    if (on_cuda()) {
      status_ = cuda::allocate(problem_.device_index, plan.workspace_bytes, stream_, &memory_);
      return;
    }
    constexpr std::size_t kAlignment = problem::kWorkspaceAlignment;
    memory_ = std::aligned_alloc(kAlignment, math::round_up(bytes_, kAlignment));
    if (memory_ == nullptr) {
      status_ = fail(TILEWISE_NO_MEMORY, "%s: no memory for a workspace of %zu bytes",
                     plan.kernel->name, bytes_);
    }
  }
  ~OwnWorkspace() {
    if (on_cuda()) {
      cuda::release(problem_.device_index, memory_, stream_);
    } else {
      std::free(memory_);
    }
  }
  OwnWorkspace(const OwnWorkspace&) = delete;
  OwnWorkspace& operator=(const OwnWorkspace&) = delete;

  Status status() const { return status_; }
  void* data() const { return memory_; }
  std::size_t bytes() const { return bytes_; }

 private:
  bool on_cuda() const { return problem_.device == TILEWISE_CUDA; }

  std::size_t bytes_;
  const Problem& problem_;
  void* stream_;
  void* memory_ = nullptr;
  Status status_ = TILEWISE_OK;
};

// The checks that the one-call functions do in addition to those of a plan's run: the contents of
// the lists if the host can read them, otherwise that their addresses belong to the device.
Status check_memory(const Problem& problem, const tilewise_problem& request) {
  if (problem.device != TILEWISE_CUDA) return problem::check_contents(problem);
  for (const problem::NamedTensor& named : problem::kTensors) {
    const tilewise_tensor& tensor = request.*named.member;
    if (named.role(problem.operation) == problem::Role::kUnused || !problem::present(tensor))
      continue;
    const Status status = cuda::check_address(problem.device_index, named.name, tensor.data);
    if (status != TILEWISE_OK) return status;
  }
  return TILEWISE_OK;
}

}  // namespace

Status supports(const Kernel& kernel, const Problem& problem, const Machine& machine) {
  if (kernel.device != problem.device) {
    return fail(TILEWISE_UNSUPPORTED, "q is on %s, the kernel works on %s",
                problem::device_text(problem.device, problem.device_index).text,
                kernel.device == TILEWISE_CUDA ? "cuda" : "the cpu");
  }
  if (problem.has_score_function() && kernel.device != TILEWISE_CPU) {
    return fail(TILEWISE_UNSUPPORTED,
                "score_function: is a function of the host, which %s cannot call", kernel.name);
  }
  return kernel.supports(problem, machine);
}

Status check_workspace(const char* user, std::int64_t needed, const void* workspace,
                       std::size_t bytes) {
  if (bytes < static_cast<std::size_t>(needed)) {
    return fail(TILEWISE_INVALID_ARGUMENT, "workspace: %zu bytes, %s needs %lld", bytes, user,
                static_cast<long long>(needed));
  }
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(workspace) % problem::kWorkspaceAlignment == 0;
  if (needed > 0 && (workspace == nullptr || !aligned)) {
    return fail(TILEWISE_INVALID_ARGUMENT, "workspace: address is %p, must be a multiple of %zu",
                workspace, problem::kWorkspaceAlignment);
  }
  return TILEWISE_OK;
}

Status resolve_machine(const Options& options, Machine* machine) {
  machine->cpu_target =
      options.cpu_target != nullptr ? options.cpu_target : environment("TILEWISE_CPU_TARGET");
  machine->concurrency = options.max_concurrency;
  if (machine->concurrency == 0) {
    if (const Status status = check_thread_variables(); status != TILEWISE_OK) return status;
    machine->concurrency = default_pool()->threads();
  }
  if (machine->concurrency < 0) {
    return fail(TILEWISE_INVALID_ARGUMENT, "max_concurrency: is %d, must be >= 0",
                options.max_concurrency);
  }
  if (machine->cpu_target == nullptr) return TILEWISE_OK;
  const cpu::Target* const target = cpu::find_target(machine->cpu_target);
  if (target != nullptr && target->available()) return TILEWISE_OK;
  char names[128];
  Line available(names, sizeof(names));
  for (const cpu::Target* other = cpu::kTargets; other->name != nullptr; ++other) {
    if (other->available()) available.add(" %s", other->name);
  }
  return fail(target == nullptr ? TILEWISE_INVALID_ARGUMENT : TILEWISE_UNSUPPORTED,
              "cpu_target: is \"%.32s\", this machine has:%s", machine->cpu_target, names);
}

Status make_plan(Operation operation, const tilewise_problem& request, const Options& options,
                 Plan* plan) {
  *plan = Plan{};
  if (const Status status = problem::make_problem(operation, request, &plan->problem);
      status != TILEWISE_OK)
    return status;
  Machine machine;
  if (const Status status = resolve_machine(options, &machine); status != TILEWISE_OK)
    return status;
  const char* const forced =
      options.kernel != nullptr ? options.kernel : environment("TILEWISE_KERNEL");
  const Status chosen = forced != nullptr ? choose_forced(operation, forced, machine, plan)
                                          : choose_first(operation, machine, plan);
  if (chosen != TILEWISE_OK) return chosen;
  if (plan->kernel->prepare != nullptr) {
    const Status prepared = plan->kernel->prepare(plan->problem);
    if (prepared != TILEWISE_OK) return prepared;
  }
  plan->concurrency = machine.concurrency;
  plan->workspace_bytes = plan->kernel->workspace_bytes(plan->problem, plan->concurrency);
  if (plan->workspace_bytes < 0) {
    return fail(TILEWISE_NO_MEMORY, "%s: the workspace for this problem exceeds 2^63 bytes",
                plan->kernel->name);
  }
  return TILEWISE_OK;
}

Status run_plan(const Plan& plan, const tilewise_problem& request, const RunOptions& options) {
  const Operation operation = plan.problem.operation;
  Problem problem;
  if (const Status status = problem::make_problem(operation, request, &problem);
      status != TILEWISE_OK)
    return status;
  if (const char* difference = planned_difference(plan.problem, problem); difference != nullptr) {
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: differs from what the plan was made for",
                difference);
  }
  if (const Status status = problem::check_pointers(operation, request); status != TILEWISE_OK)
    return status;
  if (const Status status = check_workspace(plan.kernel->name, plan.workspace_bytes,
                                            options.workspace, options.workspace_bytes);
      status != TILEWISE_OK)
    return status;
  return run_problem(plan, problem, options);
}

Status run_once(Operation operation, const tilewise_problem& request,
                const tilewise_executor* executor) {
  if (executor != nullptr) {
    if (const Status status = check_executor(*executor); status != TILEWISE_OK) return status;
  }
  Options options;
  options.max_concurrency = executor != nullptr ? executor->max_concurrency : 0;
  Plan plan;
  if (const Status status = make_plan(operation, request, options, &plan); status != TILEWISE_OK)
    return status;
  if (const Status status = problem::check_pointers(operation, request); status != TILEWISE_OK)
    return status;
  if (const Status status = check_memory(plan.problem, request); status != TILEWISE_OK)
    return status;
  const OwnWorkspace workspace(plan, executor != nullptr ? executor->stream : nullptr);
  if (workspace.status() != TILEWISE_OK) return workspace.status();
  RunOptions run_options;
  run_options.workspace = workspace.data();
  run_options.workspace_bytes = workspace.bytes();
  run_options.executor = executor;
  return run_problem(plan, plan.problem, run_options);
}

}  // namespace tilewise::plan
