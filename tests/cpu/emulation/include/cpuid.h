// A machine with AVX2, of which the emulation is made, reports every instruction set of
// src/cpu/targets.cc.
#pragma once
#pragma GCC system_header  // include_next

#include <sys/syscall.h>
#include <unistd.h>

#include_next <cpuid.h>

namespace tilewise::emulation {

inline bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
// Sets every feature bit.
inline int all_features(unsigned* a, unsigned* b, unsigned* c, unsigned* d) {
  *a = *b = *c = *d = has_avx2() ? ~0u : 0;
  return 1;
}

// The operating system permits the use of AMX.
template <class... Arguments>
long granted(Arguments...) {
  return 0;
}

}  // namespace tilewise::emulation

#define __builtin_cpu_supports(name) ::tilewise::emulation::has_avx2()
#define __get_cpuid(leaf, ...) ::tilewise::emulation::all_features(__VA_ARGS__)
#define __get_cpuid_count(leaf, subleaf, ...) ::tilewise::emulation::all_features(__VA_ARGS__)
#define syscall ::tilewise::emulation::granted
