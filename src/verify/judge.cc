#include "verify/judge.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cuda/host/runtime.h"
#include "plan/pool.h"
#include "plan/registry.h"
#include "problem/tensors.h"
#include "verify/device_copy.h"
#include "verify/part_calls.h"
#include "verify/underflow.h"

namespace tilewise::verify {
namespace {

constexpr std::size_t kGuardBytes = 4096;
constexpr std::int64_t kManyPairs = 40000;
constexpr std::int64_t kManyElements = 2500;

// Returns the number of rows of one side that take part: `lengths` and `used` have one number for
// each sequence, or none.
std::int64_t rows_in_use(std::int64_t batch, std::int64_t length,
                         const std::vector<std::int64_t>& lengths,
                         const std::vector<std::int64_t>& used) {
  std::int64_t rows = 0;
  for (std::size_t b = 0; b < static_cast<std::size_t>(batch); ++b) {
    const std::int64_t whole = lengths.empty() ? length : lengths[b];
    rows += used.empty() ? whole : std::min(whole, used[b]);
  }
  return rows;
}

// Returns the smaller of the numbers of elements of k and q that take part. If one of them is
// small, there are few different errors: of out with few keys, of dk and dv with few queries.
std::int64_t few_elements(const Case& description) {
  const auto shape = score_shape(description);
  const std::int64_t queries =
      rows_in_use(description.batch, description.q_len, description.q_lengths, description.used_q);
  const std::int64_t keys =
      rows_in_use(description.batch, description.k_len, description.k_lengths, description.used);
  const std::int64_t width = std::min(description.head_dim, description.value_dim);
  return width * std::min(keys * description.kv_heads, queries * shape[1]);
}

AccuracyOptions::Independent independent_errors(const Case& description) {
  using Independent = AccuracyOptions::Independent;
  // Expanded keys repeat values; an unusual scale (such as 0) gives every row the same output;
  // slices may leave a single key to many rows.
  const bool usual = description.storage != Storage::kExpanded && std::isinf(description.scale) &&
                     description.slices.empty() && few_elements(description) >= kManyElements;
  if (!usual) return Independent::kNothing;
  if (independent(description.distribution)) return Independent::kElements;
  return independent_rows(description.distribution) ? Independent::kRows : Independent::kNothing;
}

// True if there are few errors to take the maximum of.
bool is_small(const Case& description) {
  const auto shape = score_shape(description);
  return shape[0] * shape[1] * shape[2] * shape[3] < kManyPairs ||
         few_elements(description) < kManyElements;
}

// A workspace filled with 0xFF, followed by a guard with the same content.
struct GuardedWorkspace {
  explicit GuardedWorkspace(std::int64_t size)
      : bytes(static_cast<std::size_t>(size)), memory(bytes + kGuardBytes) {}
  bool intact() const {
    const std::byte* const guard = memory.data() + bytes;
    return std::all_of(guard, guard + kGuardBytes,
                       [](std::byte b) { return b == std::byte{0xFF}; });
  }

  std::size_t bytes;
  Memory memory;
};

Instance edited(const Case& description, const Judge::Edit& edit) {
  Instance instance(description);
  if (edit) edit(instance.request());
  return instance;
}

problem::Status plan_on_device(Operation operation, const tilewise_problem& request,
                               const plan::Options& options) {
  const DeviceCopy copy(operation, request);
  plan::Plan plan;
  return plan::make_plan(operation, copy.request(), options, &plan);
}

Verdict refusal(const char* kernel, problem::Status status) {
  Verdict verdict;
  verdict.result = status == TILEWISE_UNSUPPORTED ? Verdict::kUnsupported : Verdict::kFailed;
  verdict.text = std::string(kernel) + ": " + problem::message();
  return verdict;
}

}  // namespace

Judge::Judge(const Case& description, const Edit& edit)
    : edit_(edit), instance_(edited(description, edit)), oracle_(instance_.request()) {}

problem::Fp8Probs Judge::fp8_probs(const problem::Kernel& kernel) const {
  return problem::is_fp8(instance_.description().dtype) ? kernel.fp8_probs
                                                        : problem::Fp8Probs::kFp32;
}

void Judge::find_answers(const problem::Kernel& kernel) {
  std::vector<std::unique_ptr<Plain>>& plain = yardstick_of(kernel).plain;
  if (!plain.empty()) return;
  const Case& description = instance_.description();
  const Operation operation = description.operation;
  if (!has_oracle_) {
    oracle_.run(operation);
    if (operation == Operation::kBackward) instance_.set_forward_results(oracle_.results());
    has_oracle_ = true;
  }
  const SumOrder orders = is_small(description) ? kSumOrders : 2;
  for (SumOrder order = 0; order < orders; ++order) {
    plain.push_back(std::make_unique<Plain>(instance_.request(), order, fp8_probs(kernel)));
  }
  // No order throws: the oracle has accepted the request.
  auto run_order = [&](std::int64_t order) {
    plain[static_cast<std::size_t>(order)]->run(operation);
  };
  problem::parallel_for(plan::default_pool()->executor(), orders, run_order);
}

Verdict Judge::judge(const char* kernel, const plan::Options& options) {
  Verdict verdict = judge_draw(kernel, options);
  if (!verdict.only_biased) return verdict;
  constexpr std::uint64_t kOtherDraw = 1000;
  Case other = instance_.description();
  other.seed += kOtherDraw;
  Verdict again = Judge(other, edit_).judge_draw(kernel, options);
  return again.result == Verdict::kPassed ? again : verdict;
}

Verdict Judge::judge_draw(const char* kernel, const plan::Options& options) {
  const Operation operation = instance_.description().operation;
  plan::Options forced = options;
  if (kernel[0] != '\0') forced.kernel = kernel;
  const problem::Kernel* const named =
      forced.kernel != nullptr ? plan::find_kernel(operation, forced.kernel) : nullptr;
  if (instance_.description().is_cut()) return run_parts(kernel, forced);
  if (named != nullptr && named->device != TILEWISE_CPU) return run_copied(*named, forced);
  plan::Plan plan;
  const problem::Status status = plan::make_plan(operation, instance_.request(), forced, &plan);
  if (status != TILEWISE_OK) return refusal(kernel, status);
  find_answers(*plan.kernel);
  return run(plan);
}

// This comes before anything is copied, since there may be no device.
Verdict Judge::run_copied(const problem::Kernel& kernel, const plan::Options& options) {
  cuda::DeviceInfo device;
  if (cuda::find_device(0, &device) != TILEWISE_OK)
    return refusal(kernel.name, TILEWISE_UNSUPPORTED);
  const Operation operation = instance_.description().operation;
  const problem::Status planned = plan_on_device(operation, instance_.request(), options);
  if (planned == TILEWISE_UNSUPPORTED) return refusal(kernel.name, planned);
  find_answers(kernel);
  instance_.prepare(operation);
  const CopiedRun copied = run_on_device(operation, instance_.request(), options);
  if (copied.status == TILEWISE_UNSUPPORTED) return refusal(kernel.name, copied.status);
  return verdict_of(kernel, copied.status, copied.damage);
}

std::vector<TensorReport> Judge::measure_accuracy(const problem::Kernel& kernel) {
  AccuracyOptions options;
  options.independent = independent_errors(instance_.description());
  options.other_draws = yardstick_of(kernel).other_draws;
  options.fp8_products = fp8_probs(kernel) == problem::Fp8Probs::kE4M3;
  const Underflow underflow(instance_.description(), instance_.request(), kernel.flushes_denormals);
  options.underflow = &underflow;
  std::vector<const tilewise_problem*> plain;
  for (const auto& run : yardstick_of(kernel).plain) plain.push_back(&run->results());
  return check_accuracy(instance_.description().operation, instance_.request(), oracle_.results(),
                        plain, options);
}

// Measures the errors of plain attention on other inputs of the same case. This is done only when a
// kernel exceeds the limit: with a few numbers of a few roundings each, one draw can be lucky.
void Judge::draw_again(const problem::Kernel& kernel) {
  constexpr std::uint64_t kDraws = 8;
  std::vector<PlainError>& errors = yardstick_of(kernel).other_draws;
  if (!errors.empty()) return;
  add_lse_errors(*this, errors);
  for (std::uint64_t draw = 1; draw <= kDraws; ++draw) {
    Case description = instance_.description();
    description.seed += draw;
    Judge other(description, edit_);
    other.find_answers(kernel);
    add_lse_errors(other, errors);
    for (const problem::NamedTensor& tensor : problem::kTensors) {
      if (tensor.role(description.operation) != problem::Role::kOutput) continue;
      if (!problem::present(instance_.request().*tensor.member)) continue;
      if (tensor.member == &tilewise_problem::lse) continue;
      for (const auto& plain : other.yardstick_of(kernel).plain) {
        const double error =
            error_norms(plain->results().*tensor.member, other.oracle_.results().*tensor.member)
                .max;
        if (error > 0) errors.push_back({tensor.name, error});
      }
    }
  }
}

// Where large products cancel in a score, fp32 sums in any order exceed the limit of LSE.
void Judge::add_lse_errors(const Judge& judged, std::vector<PlainError>& errors) const {
  const tilewise_problem& request = judged.instance_.request();
  const bool returns_lse =
      instance_.description().operation == Operation::kForward && problem::present(request.lse);
  if (!returns_lse) return;
  for (SumOrder order = kSumOrders - kUnroundedOrders; order < kSumOrders; ++order) {
    Plain plain(request, order);
    plain.run(Operation::kForward);
    errors.push_back({"lse", lse_error(plain.results().lse, judged.oracle_.results().lse)});
  }
}

Verdict Judge::run(const plan::Plan& plan) {
  const GuardedWorkspace workspace(plan.workspace_bytes);
  plan::RunOptions options;
  options.workspace = workspace.memory.data();
  options.workspace_bytes = workspace.bytes;
  instance_.prepare(instance_.description().operation);
  const problem::Status status = plan::run_plan(plan, instance_.request(), options);
  return verdict_of(*plan.kernel, status, workspace.intact() ? "" : "wrote beyond its workspace");
}

// The calls of a case that is cut, each on a plan and a workspace of its own.
Verdict Judge::run_parts(const char* kernel, const plan::Options& options) {
  const Case& description = instance_.description();
  const PartCalls parts(description.operation, instance_.request(), description.q_cuts,
                        description.k_cuts, description.seed);
  bool prepared = false;
  plan::Plan plan;
  std::string damage;
  const problem::Kernel* const named =
      options.kernel != nullptr ? plan::find_kernel(description.operation, options.kernel)
                                : nullptr;
  const bool on_device = named != nullptr && named->device != TILEWISE_CPU;
  cuda::DeviceInfo device;
  if (on_device && cuda::find_device(0, &device) != TILEWISE_OK)
    return refusal(kernel, TILEWISE_UNSUPPORTED);
  for (const tilewise_problem& call : parts.calls()) {
    const problem::Status planned =
        on_device ? plan_on_device(description.operation, call, options)
                  : plan::make_plan(description.operation, call, options, &plan);
    if (planned != TILEWISE_OK) return refusal(kernel, planned);
    if (!prepared) {
      find_answers(on_device ? *named : *plan.kernel);
      instance_.prepare(description.operation);
      parts.start();
      prepared = true;
    }
    if (on_device) {
      const CopiedRun copied = run_on_device(description.operation, call, options);
      if (copied.status != TILEWISE_OK) return verdict_of(*named, copied.status, "");
      if (!copied.damage.empty()) damage = copied.damage;
      continue;
    }
    const GuardedWorkspace workspace(plan.workspace_bytes);
    plan::RunOptions run_options;
    run_options.workspace = workspace.memory.data();
    run_options.workspace_bytes = workspace.bytes;
    const problem::Status status = plan::run_plan(plan, call, run_options);
    if (status != TILEWISE_OK) return verdict_of(*plan.kernel, status, "");
    if (!workspace.intact()) damage = "wrote beyond its workspace";
  }
  return verdict_of(on_device ? *named : *plan.kernel, TILEWISE_OK, damage);
}

Verdict Judge::verdict_of(const problem::Kernel& kernel, problem::Status status,
                          const std::string& damage) {
  Verdict verdict;
  std::string reason;
  if (status != TILEWISE_OK) {
    reason = problem::message();
  } else {
    verdict.tensors = measure_accuracy(kernel);
    const bool over = std::any_of(verdict.tensors.begin(), verdict.tensors.end(),
                                  [](const TensorReport& tensor) { return !tensor.passed; });
    if (over) {  // is the kernel or the yardstick wrong? More draws tell.
      draw_again(kernel);
      verdict.tensors = measure_accuracy(kernel);
    }
    for (const TensorReport& tensor : verdict.tensors) {
      verdict.ratio = std::max(verdict.ratio, tensor.ratio());
      if (!tensor.passed) reason += (reason.empty() ? "" : "; ") + tensor.reason;
    }
    verdict.only_biased =
        std::all_of(verdict.tensors.begin(), verdict.tensors.end(),
                    [](const TensorReport& tensor) { return tensor.passed || tensor.only_biased; });
    for (const std::string& one : {instance_.damage(instance_.description().operation), damage}) {
      if (one.empty()) continue;
      reason += (reason.empty() ? "" : "; ") + one;
      verdict.only_biased = false;
    }
  }
  verdict.only_biased = verdict.only_biased && !reason.empty();
  if (reason.empty()) return verdict;
  verdict.result = Verdict::kFailed;
  verdict.text =
      std::string(kernel.name) + ": " + reason + "\n  " + describe(instance_.description());
  return verdict;
}

}  // namespace tilewise::verify
