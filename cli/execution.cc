#include "execution.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <fstream>

#include "format.h"
#include "plan/thread_count.h"
#include "problem/validate.h"

namespace tilewise::cli {
namespace {

constexpr std::int32_t kDevice = 0;

}  // namespace

Executor::Executor(const Flags& flags) {
  on_cuda_ = flags.choice("device", {"cpu", "cuda"}) == 1;
  if (on_cuda_) {
    cuda::DeviceInfo device;
    if (cuda::find_device(kDevice, &device) != TILEWISE_OK)
      throw UsageError(fmt::format("--device: {}; use --device cpu", problem::message()));
  }
  plan::ThreadCount count;
  const problem::Status status = plan::read_thread_count(&count);
  const std::int64_t threads = flags.integer("threads", 1, plan::kMostThreads, count.threads);
  if (status != TILEWISE_OK && !flags.given("threads")) throw UsageError(problem::message());
  pool_ = std::make_unique<plan::Pool>(static_cast<std::int32_t>(threads));
  executor_ = pool_->executor();
}

void Workspace::Free::operator()(void* memory) const { std::free(memory); }

Workspace::Workspace(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
  if (bytes == 0) return;
  const std::size_t alignment = problem::kWorkspaceAlignment;
  if (bytes > available_memory()) {
    throw UsageError(fmt::format("workspace: {} is needed, {} of memory is free",
                                 format_bytes(static_cast<double>(bytes)),
                                 format_bytes(static_cast<double>(available_memory()))));
  }
  memory_.reset(std::aligned_alloc(alignment, (bytes_ / alignment + 1) * alignment));
  if (memory_ == nullptr) throw std::bad_alloc();
}

Runner::Runner(problem::Operation operation, const tilewise_problem& request,
               const std::string& kernel, const Executor& executor)
    : request_(request), executor_(executor) {
  plan::Options options;
  options.kernel = kernel.empty() ? nullptr : kernel.c_str();
  options.max_concurrency = executor.threads();
  if (executor.on_cuda()) copy_ = std::make_unique<verify::DeviceCopy>(operation, request, kDevice);
  const tilewise_problem& placed = copy_ != nullptr ? copy_->request() : request;
  if (plan::make_plan(operation, placed, options, &plan_) != TILEWISE_OK ||
      problem::check_pointers(operation, request) != TILEWISE_OK ||
      (copy_ == nullptr && problem::check_contents(plan_.problem) != TILEWISE_OK)) {
    throw UsageError(problem::message());
  }
  if (copy_ != nullptr) {
    device_workspace_ = std::make_unique<verify::DeviceMemory>(kDevice, plan_.workspace_bytes);
    stopwatch_ = std::make_unique<cuda::Stopwatch>(kDevice, nullptr);
    return;
  }
  workspace_ = std::make_unique<Workspace>(plan_.workspace_bytes);
}

double Runner::run(problem::Traffic* traffic, std::int64_t sram_bytes) {
  plan::RunOptions options;
  options.workspace = copy_ != nullptr ? device_workspace_->data() : workspace_->data();
  options.workspace_bytes = static_cast<std::size_t>(plan_.workspace_bytes);
  options.executor = executor_.get();
  options.sram_bytes = sram_bytes;
  options.traffic = traffic;
  if (stopwatch_ != nullptr) stopwatch_->start();
  const double start = now_seconds();
  const tilewise_problem& placed = copy_ != nullptr ? copy_->request() : request_;
  const problem::Status status = plan::run_plan(plan_, placed, options);
  double seconds = now_seconds() - start;
  if (status != TILEWISE_OK) throw UsageError(problem::message());
  if (stopwatch_ != nullptr) {
    seconds = stopwatch_->stop();
    if (cuda::synchronise(kDevice, nullptr) != TILEWISE_OK)
      throw std::runtime_error(problem::message());
  }
  return seconds;
}

void Runner::send() {
  if (copy_ != nullptr) copy_->send();
}

void Runner::fetch() {
  if (copy_ == nullptr) return;
  if (const std::string damage = copy_->fetch(); !damage.empty()) throw std::runtime_error(damage);
}

double now_seconds() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

std::int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::int64_t kilobytes = 0;
  std::string unit;
  while (file >> name >> kilobytes) {
    if (name == "MemAvailable:") return kilobytes * 1024;
    std::getline(file, unit);
  }
  return INT64_MAX;
}

}  // namespace tilewise::cli
