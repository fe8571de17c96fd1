#include "cpu/targets.h"

#include <cstring>

namespace tilewise::cpu {
namespace {

// The compiler's own detection: CPUID, and XGETBV for the register state that the operating system
// saves.
#if defined(__x86_64__)
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("fma");
}
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif
bool always() { return true; }

}  // namespace

const Target kTargets[] = {
#if defined(__x86_64__)
    {"avx512", "AVX-512 F, BW, DQ and VL, with the operating system saving their registers",
     has_avx512},
    {"avx2", "AVX2 and FMA, with the operating system saving their registers", has_avx2},
    {"baseline", "x86-64", always},
#elif defined(__aarch64__)
    {"neon", "64-bit Arm", always},
#else
    {"generic", "nothing", always},
#endif
    {nullptr, nullptr, nullptr},
};

const Target* find_target(const char* name) {
  for (const Target* target = kTargets; target->name != nullptr; ++target) {
    if (std::strcmp(target->name, name) == 0) return target;
  }
  return nullptr;
}

}  // namespace tilewise::cpu
