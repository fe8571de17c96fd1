#include "cuda/kernels.h"

#include <limits>

#include "cuda/backward/fp32/launch.h"
#include "cuda/backward/sm80/launch.h"
#include "cuda/backward/sm90/launch.h"
#include "cuda/decode/launch.h"
#include "cuda/forward/fp32/launch.h"
#include "cuda/forward/sm80/launch.h"
#include "cuda/forward/sm90/launch.h"
#include "cuda/host/device.h"
#include "cuda/host/scheduling.h"
#include "cuda/host/sequences.cuh"
#include "cuda/ladder/backward_launch.h"
#include "cuda/ladder/launch.h"
#include "cuda/oracle/reference.cuh"
#include "cuda/parts/results.h"

namespace tilewise::cuda {
namespace {

using problem::Kernel;
using problem::Machine;
using problem::Problem;
using problem::RunContext;

Status prepare_reference(const Problem& problem) {
  return load_kernels(problem.device_index, {load_reference}, "loading cuda_reference");
}

Status run_reference_kernel(const Problem& problem, const RunContext& context) {
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  const cudaStream_t stream = stream_of(context.executor->stream);
  Sequence* const table = has_table(problem) ? static_cast<Sequence*>(context.workspace) : nullptr;
  if (table != nullptr) {
    const Status filled =
        check(fill_table(problem, table, stream, Diagonals::kExact), "starting the table kernel");
    if (filled != TILEWISE_OK) return filled;
  }
  return check(run_reference(problem, table, stream), "starting cuda_reference");
}

GradientWorkspace gradient_workspace(const Problem& problem, problem::Arena& arena) {
  const std::int64_t batches = problem.q_packed ? 1 : problem.batch;
  GradientWorkspace workspace = {};
  if (has_table(problem)) workspace.table = arena.take<Sequence>(problem.batch);
  workspace.deltas = arena.take<double>(batches * problem.heads * problem.q_rows);
  return workspace;
}

std::int64_t gradient_workspace_bytes(const Problem& problem) {
  problem::Arena arena;
  gradient_workspace(problem, arena);
  return arena.bytes();
}

Status prepare_reference_gradient(const Problem& problem) {
  return load_kernels(problem.device_index, {load_reference_gradient}, "loading cuda_reference");
}

Status run_reference_gradient_kernel(const Problem& problem, const RunContext& context) {
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  problem::Arena arena(context.workspace);
  const GradientWorkspace workspace = gradient_workspace(problem, arena);
  return check(run_reference_gradient(problem, workspace, stream_of(context.executor->stream)),
               "starting cuda_reference");
}

// A registry row's functions, from those of a kernel that computes whole results. A problem that
// accumulates is computed into the workspace and merged (parts/results.h).
template <Status (*kSupports)(const Problem&), std::int64_t (*kWorkspaceBytes)(const Problem&),
          Status (*kPrepare)(const Problem&), Status (*kRun)(const Problem&, const RunContext&)>
struct Functions {
  static Status supports(const Problem& problem, const Machine&) {
    return kSupports(parts::Results(problem).part());
  }

  static std::int64_t workspace_bytes(const Problem& problem, std::int64_t) {
    const parts::Results results(problem);
    const std::int64_t own = kWorkspaceBytes(results.part());
    if (own < 0 || results.bytes() < 0) return -1;
    const problem::Checked all = problem::Checked{own} + problem::Checked{results.bytes()};
    return all.valid ? all.value : -1;
  }

  static Status prepare(const Problem& problem) {
    if (problem.accumulate) {
      const Status loaded = load_kernels(problem.device_index, {parts::load_merge},
                                         "loading the kernels that merge parts");
      if (loaded != TILEWISE_OK) return loaded;
    }
    return kPrepare(parts::Results(problem).part());
  }

  static Status run(const Problem& problem, const RunContext& context) {
    if (!problem.accumulate) return kRun(problem, context);
    const parts::Results results(problem, context.workspace);
    RunContext own = context;
    own.workspace = static_cast<char*>(context.workspace) + results.bytes();
    const Status computed = kRun(results.part(), own);
    if (computed != TILEWISE_OK) return computed;
    const CurrentDevice current(problem.device_index);
    if (current.status() != TILEWISE_OK) return current.status();
    return check(parts::merge(problem, results.part(), stream_of(context.executor->stream)),
                 "starting the kernels that merge parts");
  }
};

// `supports` of a kernel that leaves some problems with `parts` to the reference.
template <Status (*kSupports)(const Problem&)>
Status supports_parts(const Problem& problem) {
  const Status parts = parts::check_parts(problem);
  return parts != TILEWISE_OK ? parts : kSupports(problem);
}

using Decode = Functions<supports_parts<decode::supports>, decode::workspace_bytes, decode::prepare,
                         decode::run>;
using Sm90 =
    Functions<supports_parts<sm90::supports>, sm90::workspace_bytes, sm90::prepare, sm90::run>;
using Sm80 =
    Functions<supports_parts<sm80::supports>, sm80::workspace_bytes, sm80::prepare, sm80::run>;
using Fp32 =
    Functions<supports_parts<fp32::supports>, fp32::workspace_bytes, fp32::prepare, fp32::run>;
using Flash1 = Functions<supports_parts<ladder::supports_flash1>, ladder::workspace_of_flash1,
                         ladder::prepare_flash1, ladder::run_flash1>;
using Standard = Functions<supports_parts<ladder::supports_standard>, ladder::workspace_of_standard,
                           ladder::prepare_standard, ladder::run_standard>;
using Reference = Functions<check_device, table_bytes, prepare_reference, run_reference_kernel>;
using GradientSm90 =
    Functions<supports_parts<backward::sm90::supports>, backward::sm90::workspace_bytes,
              backward::sm90::prepare, backward::sm90::run>;
using GradientSm80 =
    Functions<supports_parts<backward::sm80::supports>, backward::sm80::workspace_bytes,
              backward::sm80::prepare, backward::sm80::run>;
using GradientFp32 =
    Functions<supports_parts<backward::fp32::supports>, backward::fp32::workspace_bytes,
              backward::fp32::prepare, backward::fp32::run>;
using GradientFlash1 = Functions<supports_parts<ladder::supports_flash1_gradient>,
                                 ladder::workspace_of_flash1_gradient,
                                 ladder::prepare_flash1_gradient, ladder::run_flash1_gradient>;
using GradientStandard =
    Functions<supports_parts<ladder::supports_standard_gradient>,
              ladder::workspace_of_standard_gradient, ladder::prepare_standard_gradient,
              ladder::run_standard_gradient>;
using GradientReference = Functions<check_device, gradient_workspace_bytes,
                                    prepare_reference_gradient, run_reference_gradient_kernel>;

// The reference counts no traffic.
double no_prediction(const Problem&, std::int64_t, std::int64_t) {
  return std::numeric_limits<double>::quiet_NaN();
}

// Why a rung of the ladder is not chosen by itself.
const char* below_flash2(const Problem&, const Machine&) {
  return "a rung of the ladder below FlashAttention-2";
}

}  // namespace

constinit const Kernel kForwardDecode = {
    "cuda_decode",
    "Flash-Decoding since Ampere: few queries, blocks divide the keys; bf16 and fp16, since Hopper "
    "caches of fp8, D up to 256, fp32 up to D 128; FlashDecoding++ in 16 bits up to D 128, "
    "where rows next to one that falls back may round differently",
    Decode::supports,
    Decode::workspace_bytes,
    Decode::run,
    no_prediction,
    false,
    TILEWISE_CUDA,
    Decode::prepare,
    [](const Problem& problem, const Machine&) {
      return decode::slower(problem, sm90::supports(problem) == TILEWISE_OK);
    },
    false,
    problem::Fp8Probs::kFp16};

constinit const Kernel kForwardSm90 = {
    "cuda_sm90",
    "FlashAttention-3 on Hopper: TMA, wgmma, warp specialisation; bf16 and fp16, D up to 256; fp8, "
    "D up to 128; rows next to a NaN may round differently",
    Sm90::supports,
    Sm90::workspace_bytes,
    Sm90::run,
    [](const Problem& problem, std::int64_t, std::int64_t) {
      return sm90::predicted_traffic(problem);
    },
    false,
    TILEWISE_CUDA,
    Sm90::prepare,
    nullptr,
    false,
    problem::Fp8Probs::kE4M3};

constinit const Kernel kForwardSm80 = {
    "cuda_sm80",
    "FlashAttention-2 since Ampere: mma.sync, cp.async; bf16 and fp16, D up to 256, every option",
    Sm80::supports,
    Sm80::workspace_bytes,
    Sm80::run,
    [](const Problem& problem, std::int64_t, std::int64_t) {
      return sm80::predicted_traffic(problem);
    },
    false,
    TILEWISE_CUDA,
    Sm80::prepare};

constinit const Kernel kBackwardSm90 = {
    "cuda_sm90",
    "FlashAttention-3 on Hopper: TMA, wgmma, warp specialisation; bf16 and fp16, D up to 256; dQ "
    "has the same bits from run to run if deterministic",
    GradientSm90::supports,
    GradientSm90::workspace_bytes,
    GradientSm90::run,
    [](const Problem& problem, std::int64_t, std::int64_t) {
      return backward::sm90::predicted_traffic(problem);
    },
    true,  // sums of dQ are added by red.global.add.v4.f32
    TILEWISE_CUDA,
    GradientSm90::prepare};

constinit const Kernel kBackwardSm80 = {
    "cuda_sm80",
    "FlashAttention-2 since Ampere: mma.sync, cp.async; bf16 and fp16, D up to 256, every option; "
    "dQ has the same bits from run to run if deterministic",
    GradientSm80::supports,
    GradientSm80::workspace_bytes,
    GradientSm80::run,
    [](const Problem& problem, std::int64_t, std::int64_t) {
      return backward::sm80::predicted_traffic(problem);
    },
    true,  // sums of dQ are added by red.global.add.f32
    TILEWISE_CUDA,
    GradientSm80::prepare};

constinit const Kernel kForwardFp32 = {
    "cuda_fp32",
    "FlashAttention-2 since Ampere in multiply-adds: fp32, D up to 256, every option",
    Fp32::supports,
    Fp32::workspace_bytes,
    Fp32::run,
    [](const Problem& problem, std::int64_t, std::int64_t) {
      return fp32::predicted_traffic(problem);
    },
    false,
    TILEWISE_CUDA,
    Fp32::prepare};

constinit const Kernel kBackwardFp32 = {
    "cuda_fp32",
    "FlashAttention-2 since Ampere in multiply-adds: fp32, D up to 256, every option; dQ has the "
    "same bits from run to run if deterministic",
    GradientFp32::supports,
    GradientFp32::workspace_bytes,
    GradientFp32::run,
    [](const Problem& problem, std::int64_t, std::int64_t) {
      return backward::fp32::predicted_traffic(problem);
    },
    true,  // sums of dQ are added by red.global.add.f32
    TILEWISE_CUDA,
    GradientFp32::prepare};

constinit const Kernel kForwardFlash1 = {
    "cuda_flash1",
    "FlashAttention-1: a block for each head, out renormalised in memory; bf16 and fp16, D up to "
    "128; rows next to a NaN may round differently",
    Flash1::supports,
    Flash1::workspace_bytes,
    Flash1::run,
    [](const Problem& problem, std::int64_t, std::int64_t) {
      return ladder::predicted_traffic_of_flash1(problem);
    },
    false,
    TILEWISE_CUDA,
    Flash1::prepare,
    below_flash2,
    true};

constinit const Kernel kForwardStandard = {
    "cuda_standard",
    "S and P in memory, three kernels: attention as in the formula; bf16 and fp16, D up to "
    "128; rows next to a NaN may round differently",
    Standard::supports,
    Standard::workspace_bytes,
    Standard::run,
    [](const Problem& problem, std::int64_t, std::int64_t) {
      return ladder::predicted_traffic_of_standard(problem);
    },
    false,
    TILEWISE_CUDA,
    Standard::prepare,
    below_flash2,
    true};

constinit const Kernel kBackwardFlash1 = {
    "cuda_flash1",
    "FlashAttention-1: a block for each kv head, dQ added to in memory; bf16 and fp16, D up to 128",
    GradientFlash1::supports,
    GradientFlash1::workspace_bytes,
    GradientFlash1::run,
    [](const Problem& problem, std::int64_t, std::int64_t) {
      return ladder::predicted_traffic_of_flash1_gradient(problem);
    },
    false,
    TILEWISE_CUDA,
    GradientFlash1::prepare,
    below_flash2,
    true};

constinit const Kernel kBackwardStandard = {
    "cuda_standard",
    "S, P, dP and dS in memory, a kernel for each product: gradients as in the formula; bf16 and "
    "fp16, D up to 128, no dBias",
    GradientStandard::supports,
    GradientStandard::workspace_bytes,
    GradientStandard::run,
    [](const Problem& problem, std::int64_t, std::int64_t) {
      return ladder::predicted_traffic_of_standard_gradient(problem);
    },
    false,
    TILEWISE_CUDA,
    GradientStandard::prepare,
    below_flash2,
    true};

constinit const Kernel kForwardReference = {
    "cuda_reference",
    "a block for each row, fp64 arithmetic, every option: the slow oracle of the GPU",
    Reference::supports,
    Reference::workspace_bytes,
    Reference::run,
    no_prediction,
    false,
    TILEWISE_CUDA,
    Reference::prepare};

constinit const Kernel kBackwardReference = {
    "cuda_reference",
    "a block for each row of queries and of keys, fp64 arithmetic, every option: the slow oracle "
    "of the GPU",
    GradientReference::supports,
    GradientReference::workspace_bytes,
    GradientReference::run,
    no_prediction,
    false,
    TILEWISE_CUDA,
    GradientReference::prepare};

}  // namespace tilewise::cuda
