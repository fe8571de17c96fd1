#include "plan/host.h"

#include <sys/utsname.h>

#include <fstream>
#include <sstream>

#include "cpu/targets.h"
#include "plan/plan.h"
#include "plan/thread_count.h"

namespace tilewise::plan {
namespace {

// Returns the value of the first line of /proc/cpuinfo that starts with `key`.
std::string cpuinfo(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(':');
    if (line.rfind(key, 0) == 0 && colon + 2 < line.size()) return line.substr(colon + 2);
  }
  return "";
}

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "g++ " __VERSION__;
#else
  return "unknown";
#endif
}

std::string known_features() {
  static constexpr const char* kKnown[] = {
      "sse4_2",   "avx",      "f16c",     "fma",         "avx2",        "avx512f",
      "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16",
      "amx_bf16", "asimd",    "asimdhp",  "bf16",        "sve"};
  const std::string flags = cpuinfo("flags") + " " + cpuinfo("Features");
  std::string features;
  std::istringstream words(flags);
  for (std::string word; words >> word;) {
    for (const char* known : kKnown) {
      if (word == known) features += (features.empty() ? "" : " ") + word;
    }
  }
  return features;
}

// Returns the best instruction set of the machine, or the one that TILEWISE_CPU_TARGET forces.
std::string chosen_target() {
  problem::Machine machine;
  const bool known = resolve_machine({}, &machine) == TILEWISE_OK;
  if (known && machine.cpu_target != nullptr) return machine.cpu_target;
  for (const cpu::Target* target = cpu::kTargets; target->name != nullptr; ++target) {
    if (target->available()) return target->name;
  }
  return "";
}

}  // namespace

Host this_host() {
  Host host;
  host.cpu = cpuinfo("model name");
  host.features = known_features();
  host.target = chosen_target();
  host.compiler = compiler();
  utsname name = {};
  if (uname(&name) == 0) {
    host.system = std::string(name.sysname) + " " + name.release + " " + name.machine;
  }
  host.cpus = usable_cpus();
  return host;
}

}  // namespace tilewise::plan
