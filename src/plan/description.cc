#include "plan/description.h"

#include "cpu/targets.h"
#include "cuda/host/runtime.h"
#include "plan/registry.h"
#include "plan/thread_count.h"

namespace tilewise::plan {
namespace {

// Returns a line such as "  + cpu_avx512      description".
std::string row_text(const Listed& row) {
  constexpr std::size_t kNameWidth = 15;
  std::string name = row.name;
  if (name.size() < kNameWidth) name.resize(kNameWidth, ' ');
  return std::string("  ") + (row.available ? "+ " : "- ") + name + " " +
         (row.why_not.empty() ? row.text : row.why_not) + "\n";
}

std::string list_text(const char* title, const std::vector<Listed>& rows) {
  std::string text = std::string("\n") + title + "\n";
  for (const Listed& row : rows) text += row_text(row);
  return text;
}

std::string cuda_devices() {
  std::string text;
  cuda::DeviceInfo device;
  for (std::int32_t index = 0; index < cuda::device_count(); ++index) {
    if (cuda::find_device(index, &device) != TILEWISE_OK) continue;
    text += ", cuda:" + std::to_string(index) + " (" + device.name + ", compute capability " +
            std::to_string(device.major) + "." + std::to_string(device.minor) + ")";
  }
  if (text.empty() && cuda::find_device(0, &device) != TILEWISE_OK)
    text = std::string(" (") + problem::message() + ")";
  return text;
}

// Returns the number of threads of the default pool and what sets it.
std::string threads_text() {
  ThreadCount count;
  if (read_thread_count(&count) != TILEWISE_OK) return problem::message();
  return std::to_string(count.threads) + (count.variable != nullptr
                                              ? std::string(" (") + count.variable + ")"
                                              : " (set TILEWISE_NUM_THREADS for another number)");
}

}  // namespace

std::vector<Listed> listed_targets() {
  std::vector<Listed> rows;
  for (const cpu::Target* target = cpu::kTargets; target->name != nullptr; ++target)
    rows.push_back({target->name, target->needs, target->available(), ""});
  return rows;
}

// An empty problem of the dtype that all kernels have shows whether the machine can run a kernel at
// all.
std::vector<Listed> listed_kernels(problem::Operation operation) {
  problem::Machine machine = {nullptr, 1};
  problem::Problem empty;
  empty.dtype = TILEWISE_BF16;
  for (problem::View* view :
       {&empty.q, &empty.k, &empty.v, &empty.out, &empty.dout, &empty.dq, &empty.dk, &empty.dv})
    view->dtype = TILEWISE_BF16;
  std::vector<Listed> rows;
  for (const problem::Kernel* kernel : kernels(operation)) {
    empty.device = kernel->device;
    const bool usable = kernel->supports(empty, machine) == TILEWISE_OK;
    rows.push_back({kernel->name, kernel->description, usable, usable ? "" : problem::message()});
  }
  return rows;
}

std::string description(const Host& host) {
  std::string text = std::string("Tilewise ") + tilewise_version() + "\n";
  text += "compiler  " + host.compiler + "\n";
  text += "system    " + host.system + "\n";
  text += "cpu       " + host.cpu + ", " + std::to_string(host.cpus) + " usable\n";
  text += "threads   " + threads_text() + "\n";
  text += "features  " + host.features + "\n";
  text += "devices   cpu" + cuda_devices() + "\n";
  text += list_text("Instruction sets, best first (force one with TILEWISE_CPU_TARGET):",
                    listed_targets());
  text += list_text("Kernels, forward, in order of preference (force one with TILEWISE_KERNEL):",
                    listed_kernels(problem::Operation::kForward));
  text += list_text("Kernels, backward:", listed_kernels(problem::Operation::kBackward));
  return text;
}

}  // namespace tilewise::plan
