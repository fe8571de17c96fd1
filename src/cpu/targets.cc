#include "cpu/targets.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

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
// Conversion of fp16: clang 14's builtin does not know its name. Its registers are those of AVX.
bool has_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
#endif
bool always() { return true; }

}  // namespace

const Target kTargets[] = {
#if defined(__x86_64__)
    {"avx512", "AVX-512 F, BW, DQ and VL, with the operating system saving their registers",
     has_avx512},
    {"avx2", "AVX2, FMA and F16C, with the operating system saving their registers", has_avx2},
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
