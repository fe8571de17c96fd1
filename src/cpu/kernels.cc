#include "cpu/kernels.h"

#include <cstring>

#include "cpu/targets.h"
#include "problem/tensor_checks.h"

namespace tilewise::cpu {
namespace {

using problem::Kernel;
using problem::Machine;
using problem::Problem;
using problem::RunContext;
using problem::Status;

// Whether the machine, or a forced target, rules a kernel out.
Status supports(const char* name, const Machine& machine) {
  const Target* const forced =
      machine.cpu_target != nullptr ? find_target(machine.cpu_target) : nullptr;
  const bool is_base =
      forced != nullptr && forced->base != nullptr && std::strcmp(forced->base, name) == 0;
  if (machine.cpu_target != nullptr && std::strcmp(machine.cpu_target, name) != 0 && !is_base) {
    return problem::fail(TILEWISE_UNSUPPORTED, "cpu_target is %s, not %s", machine.cpu_target,
                         name);
  }
  const Target* const target = find_target(name);
  if (target->available()) return TILEWISE_OK;
  if (!is_compiled(name))
    return problem::fail(TILEWISE_UNSUPPORTED,
                         "this build leaves out %s (TILEWISE_NATIVE, TILEWISE_CPU_TARGETS)", name);
  return problem::fail(TILEWISE_UNSUPPORTED, "this machine lacks %s", target->needs);
}

#if defined(__x86_64__)
Status refuse_fp8(const char* name, const Problem& problem) {
  if (!problem::is_fp8(problem.dtype)) return TILEWISE_OK;
  return problem::fail(TILEWISE_UNSUPPORTED, "k: dtype is %s, which cpu_%s does not read",
                       problem::dtype_name(problem.dtype), name);
}
// A call would not preserve the tile registers, which hold outputs at that time.
Status refuse_score_function(const char* name, const Problem& problem) {
  if (!problem.has_score_function()) return TILEWISE_OK;
  return problem::fail(
      TILEWISE_UNSUPPORTED,
      "score_function: cpu_%s keeps sums in tile registers, which no call preserves", name);
}
Status supports_bf16(const char* name, const Problem& problem, const Machine& machine) {
  TILEWISE_RETURN_IF_ERROR(refuse_fp8(name, problem));
  if (problem.dtype != TILEWISE_BF16)
    return problem::fail(TILEWISE_UNSUPPORTED, "q, k and v are not bf16");
  return supports(name, machine);
}
Status supports_amx(const Problem& problem, const Machine& machine) {
  TILEWISE_RETURN_IF_ERROR(refuse_fp8("amx", problem));
  TILEWISE_RETURN_IF_ERROR(refuse_score_function("amx", problem));
  if (problem.dtype != TILEWISE_BF16 && problem.dtype != TILEWISE_FP16)
    return problem::fail(TILEWISE_UNSUPPORTED, "q, k and v are neither bf16 nor fp16");
  return supports("amx", machine);
}

// A Xeon with AMX takes four times as long for vdpbf16ps, which does two multiply-adds per lane, as
// for one multiply-add of floats. Zen 4 and 5 issue both at the same rate.
const char* slower_bf16_dot(const Problem&, const Machine& machine) {
  if (machine.cpu_target != nullptr || bf16_dot_is_fast()) return nullptr;
  return "this processor multiplies floats faster than pairs of bf16";
}

// fp16 in two terms packs 32 rows at a time, and four copies of each, which few rows do not repay.
// Packed sequences do not count here: the bits of a row must not depend on the lengths of other
// sequences.
const char* slower_fp16_terms(const Problem& problem, const Machine& machine) {
  constexpr std::int64_t kFewRows = 64;
  if (machine.cpu_target != nullptr || problem.dtype != TILEWISE_FP16 || problem.q_packed ||
      problem.k_packed || (problem.max_q >= kFewRows && problem.max_k >= kFewRows))
    return nullptr;
  return "fewer than 64 queries or keys of fp16 are faster in fp32";
}
#endif

// The kernels of other instruction sets are reached through pointers only, so that none of their
// code is compiled here.
template <const TargetKernels& kTarget>
constexpr Kernel forward_kernel(const char* name, const char* description,
                                Status (*supported)(const Problem&, const Machine&),
                                bool flushes_denormals = false,
                                const char* (*slower)(const Problem&, const Machine&) = nullptr) {
  return {name,
          description,
          supported,
          [](const Problem& problem, std::int64_t concurrency) {
            return kTarget.forward_workspace(problem, concurrency);
          },
          [](const Problem& problem, const RunContext& context) {
            return kTarget.forward(problem, context);
          },
          [](const Problem& problem, std::int64_t concurrency, std::int64_t) {
            return kTarget.forward_traffic(problem, concurrency);
          },
          flushes_denormals,
          TILEWISE_CPU,
          nullptr,
          slower};
}
template <const TargetKernels& kTarget>
constexpr Kernel backward_kernel(const char* name, const char* description,
                                 Status (*supported)(const Problem&, const Machine&),
                                 bool flushes_denormals = false,
                                 const char* (*slower)(const Problem&, const Machine&) = nullptr) {
  return {name,
          description,
          supported,
          [](const Problem& problem, std::int64_t concurrency) {
            return kTarget.backward_workspace(problem, concurrency);
          },
          [](const Problem& problem, const RunContext& context) {
            return kTarget.backward(problem, context);
          },
          [](const Problem& problem, std::int64_t concurrency, std::int64_t) {
            return kTarget.backward_traffic(problem, concurrency);
          },
          flushes_denormals,
          TILEWISE_CPU,
          nullptr,
          slower};
}

#define TILEWISE_SUPPORTS(target) \
  [](const Problem&, const Machine& machine) { return supports(#target, machine); }

}  // namespace

#define TILEWISE_CPU_KERNELS(Target, target, registers)                                          \
  constinit const Kernel kForward##Target = forward_kernel<target::kKernels>(                    \
      "cpu_" #target, "FlashAttention-2 tiles, " registers, TILEWISE_SUPPORTS(target));          \
  constinit const Kernel kBackward##Target = backward_kernel<target::kKernels>(                  \
      "cpu_" #target,                                                                            \
      "FlashAttention-2 recomputation, key blocks outside, dQ added in their order, " registers, \
      TILEWISE_SUPPORTS(target));

#if defined(__x86_64__)
constinit const Kernel kForwardAmx = forward_kernel<amx::kKernels>(
    "cpu_amx", "FlashAttention-2 tiles, bf16 products on the matrix unit, fp16 as sums of two bf16",
    supports_amx, true);
constinit const Kernel kBackwardAmx = backward_kernel<amx::kKernels>(
    "cpu_amx",
    "FlashAttention-2 recomputation, key blocks outside, dQ added in their order, bf16 products on "
    "the matrix unit, fp16 as sums of two bf16",
    supports_amx, true, slower_fp16_terms);
constinit const Kernel kForwardAvx512Bf16 = forward_kernel<avx512_bf16::kKernels>(
    "cpu_avx512_bf16", "FlashAttention-2 tiles, products of bf16 pairs in 512-bit registers",
    [](const Problem& problem, const Machine& machine) {
      return supports_bf16("avx512_bf16", problem, machine);
    },
    true, slower_bf16_dot);
constinit const Kernel kBackwardAvx512Bf16 = backward_kernel<avx512_bf16::kKernels>(
    "cpu_avx512_bf16",
    "FlashAttention-2 recomputation, key blocks outside, dQ added in their order, products of bf16 "
    "pairs in 512-bit registers",
    [](const Problem& problem, const Machine& machine) {
      return supports_bf16("avx512_bf16", problem, machine);
    },
    true, slower_bf16_dot);
TILEWISE_CPU_KERNELS(Avx512, avx512, "512-bit registers")
TILEWISE_CPU_KERNELS(Avx2, avx2, "256-bit registers")
TILEWISE_CPU_KERNELS(Baseline, baseline, "128-bit registers")
#elif defined(__aarch64__)
TILEWISE_CPU_KERNELS(Neon, neon, "128-bit registers")
#else
TILEWISE_CPU_KERNELS(Generic, generic, "the compiler's vectors")
#endif

#undef TILEWISE_CPU_KERNELS
#undef TILEWISE_SUPPORTS

}  // namespace tilewise::cpu
