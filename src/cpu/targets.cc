#include "cpu/targets.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstring>
#include <string_view>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

// The instruction sets that this build leaves out, as in ",amx,avx512,".
#if !defined(TILEWISE_LEFT_OUT)
#define TILEWISE_LEFT_OUT ""
#endif

namespace tilewise::cpu {
namespace {

// The names stand between commas, because one is the beginning of another.
constexpr bool is_left_out(std::string_view name) {
  const std::string_view list = TILEWISE_LEFT_OUT;
  for (std::size_t at = list.find(name); at < list.size(); at = list.find(name, at + 1)) {
    if (list[at - 1] == ',' && list[at + name.size()] == ',') return true;
  }
  return false;
}

// The compiler's own detection reads CPUID, and XGETBV for the register state that the operating
// system saves.
#if defined(__x86_64__)
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("fma");
}
// NOTE: The result of CPUID is kept. In a virtual machine the instruction traps and takes 10 us
// (measured on a Xeon), in a call that takes 2 us without it.

// The conversion of fp16 (F16C) is read from CPUID, because clang 14's builtin does not know its
// name. Its registers are those of AVX.
bool detect_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
bool has_f16c() {
  static const bool has = detect_f16c();
  return has;
}
bool detect_avx512_bf16() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return has_avx512() && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 5)) != 0;
}
bool has_avx512_bf16() {
  static const bool has = detect_avx512_bf16();
  return has;
}
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
#endif

#if defined(__x86_64__) && defined(__linux__)
// AMX needs more than CPUID and XGETBV: Linux gives its 8 KB of registers only to processes that
// request them. The permission covers all threads and is never withdrawn.
bool request_amx_registers() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
bool detect_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!has_avx512() || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kTilesAndBf16 = (1u << 24) | (1u << 22);
  if ((d & kTilesAndBf16) != kTilesAndBf16) return false;
  return has_avx512_bf16() && request_amx_registers();
}
bool has_amx() {
  static const bool has = detect_amx();
  return has;
}
#else
[[maybe_unused]] bool has_amx() { return false; }
#endif

}  // namespace

const Target kTargets[] = {
#if defined(__x86_64__)
    {"amx", "avx512",
     "AMX with bf16 and AVX-512 with bf16, and permission of the operating system to use them",
     [] { return !is_left_out("amx") && has_amx(); }},
    {"avx512_bf16", "avx512",
     "AVX-512 F, BW, DQ, VL and BF16, with the operating system saving their registers",
     [] { return !is_left_out("avx512_bf16") && has_avx512_bf16(); }},
    {"avx512", nullptr,
     "AVX-512 F, BW, DQ and VL, with the operating system saving their registers",
     [] { return !is_left_out("avx512") && has_avx512(); }},
    {"avx2", nullptr, "AVX2, FMA and F16C, with the operating system saving their registers",
     [] { return !is_left_out("avx2") && has_avx2(); }},
    {"baseline", nullptr, "x86-64", [] { return !is_left_out("baseline"); }},
#elif defined(__aarch64__)
    {"neon", nullptr, "64-bit Arm", [] { return !is_left_out("neon"); }},
#else
    {"generic", nullptr, "nothing", [] { return !is_left_out("generic"); }},
#endif
    {nullptr, nullptr, nullptr, nullptr},
};

bool bf16_dot_is_fast() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}

bool is_compiled(const char* name) { return !is_left_out(name); }

const Target* find_target(const char* name) {
  for (const Target* target = kTargets; target->name != nullptr; ++target) {
    if (std::strcmp(target->name, name) == 0) return target;
  }
  return nullptr;
}

}  // namespace tilewise::cpu
