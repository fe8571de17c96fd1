#include "cuda/kernels.h"

#include <limits>

#include "cuda/backward/sm80/launch.h"
#include "cuda/backward/sm90/launch.h"
#include "cuda/decode/launch.h"
#include "cuda/forward/fp32/launch.h"
#include "cuda/forward/sm80/launch.h"
#include "cuda/forward/sm90/launch.h"
#include "cuda/host/device.h"
#include "cuda/host/scheduling.h"
#include "cuda/host/sequences.cuh"
#include "cuda/ladder/launch.h"
#include "cuda/oracle/reference.cuh"

namespace tilewise::cuda {
namespace {

using problem::Kernel;
using problem::Machine;
using problem::Problem;
using problem::RunContext;

Status prepare_reference(const Problem& problem) {
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  return check(load_reference(), "loading cuda_reference");
}

Status run_reference_kernel(const Problem& problem, const RunContext& context) {
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  const cudaStream_t stream = stream_of(context.executor->stream);
  Sequence* const table = has_table(problem) ? static_cast<Sequence*>(context.workspace) : nullptr;
  if (table != nullptr) {
    const Status filled = check(fill_table(problem, table, stream), "starting the table kernel");
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

std::int64_t gradient_workspace_bytes(const Problem& problem, std::int64_t) {
  problem::Arena arena;
  gradient_workspace(problem, arena);
  return arena.bytes();
}

Status prepare_reference_gradient(const Problem& problem) {
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  return check(load_reference_gradient(), "loading cuda_reference");
}

Status run_reference_gradient_kernel(const Problem& problem, const RunContext& context) {
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  problem::Arena arena(context.workspace);
  const GradientWorkspace workspace = gradient_workspace(problem, arena);
  return check(run_reference_gradient(problem, workspace, stream_of(context.executor->stream)),
               "starting cuda_reference");
}

// No GPU kernel merges its keys into an earlier result, or knows a sequence as a part of a whole.
Status refuse_parts(const Problem& problem) {
  if (problem.accumulate) {
    return problem::fail(TILEWISE_UNSUPPORTED,
                         "accumulate: is 1, no CUDA kernel adds to earlier results");
  }
  if (problem.parts.present()) {
    return problem::fail(TILEWISE_UNSUPPORTED,
                         "parts: given, no CUDA kernel takes parts of sequences");
  }
  return TILEWISE_OK;
}

// The `supports` of a registry row, from that of the kernel.
template <Status (*kSupports)(const Problem&)>
Status supports_whole(const Problem& problem, const Machine&) {
  const Status refused = refuse_parts(problem);
  return refused != TILEWISE_OK ? refused : kSupports(problem);
}

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
    "Flash-Decoding since Ampere: few queries, blocks divide the keys; bf16 and fp16, D up to 256",
    supports_whole<decode::supports>,
    [](const Problem& problem, std::int64_t) { return decode::workspace_bytes(problem); },
    decode::run,
    no_prediction,
    false,
    TILEWISE_CUDA,
    decode::prepare,
    [](const Problem& problem, const Machine&) {
      return decode::slower(problem, sm90::supports(problem) == TILEWISE_OK);
    }};

constinit const Kernel kForwardSm90 = {
    "cuda_sm90",
    "FlashAttention-3 on Hopper: TMA, wgmma, warp specialisation; bf16 and fp16, D up to 256; fp8, "
    "D up to 128; rows next to a NaN may round differently",
    supports_whole<sm90::supports>,
    [](const Problem& problem, std::int64_t) { return sm90::workspace_bytes(problem); },
    sm90::run,
    [](const Problem& problem, std::int64_t, std::int64_t) {
      return sm90::predicted_traffic(problem);
    },
    false,
    TILEWISE_CUDA,
    sm90::prepare,
    nullptr,
    false,
    true};

constinit const Kernel kForwardSm80 = {
    "cuda_sm80",
    "FlashAttention-2 since Ampere: mma.sync, cp.async; bf16 and fp16, D up to 256, every option",
    supports_whole<sm80::supports>,
    [](const Problem& problem, std::int64_t) { return sm80::workspace_bytes(problem); },
    sm80::run,
    [](const Problem& problem, std::int64_t, std::int64_t) {
      return sm80::predicted_traffic(problem);
    },
    false,
    TILEWISE_CUDA,
    sm80::prepare};

constinit const Kernel kBackwardSm90 = {
    "cuda_sm90",
    "FlashAttention-3 on Hopper: TMA, wgmma, warp specialisation; bf16 and fp16, D up to 128; dQ "
    "has "
    "the same bits from run to run if deterministic",
    supports_whole<backward::sm90::supports>,
    [](const Problem& problem, std::int64_t) { return backward::sm90::workspace_bytes(problem); },
    backward::sm90::run,
    no_prediction,
    true,  // sums of dQ are added by red.global.add.v4.f32
    TILEWISE_CUDA,
    backward::sm90::prepare};

constinit const Kernel kBackwardSm80 = {
    "cuda_sm80",
    "FlashAttention-2 since Ampere: mma.sync, cp.async; bf16 and fp16, D up to 256, every option; "
    "dQ has the same bits from run to run if deterministic",
    supports_whole<backward::sm80::supports>,
    [](const Problem& problem, std::int64_t) { return backward::sm80::workspace_bytes(problem); },
    backward::sm80::run,
    no_prediction,
    true,  // sums of dQ are added by red.global.add.f32

    TILEWISE_CUDA,
    backward::sm80::prepare};

constinit const Kernel kForwardFp32 = {
    "cuda_fp32",
    "FlashAttention-2 since Ampere in multiply-adds: fp32, D up to 256, every option",
    supports_whole<fp32::supports>,
    [](const Problem& problem, std::int64_t) { return fp32::workspace_bytes(problem); },
    fp32::run,
    [](const Problem& problem, std::int64_t, std::int64_t) {
      return fp32::predicted_traffic(problem);
    },
    false,
    TILEWISE_CUDA,
    fp32::prepare};

constinit const Kernel kForwardFlash1 = {
    "cuda_flash1",
    "FlashAttention-1: a block for each head, out renormalised in memory; bf16 and fp16, D up to "
    "128; rows next to a NaN may round differently",
    supports_whole<ladder::supports_flash1>,
    [](const Problem& problem, std::int64_t) { return ladder::workspace_of_flash1(problem); },
    ladder::run_flash1,
    [](const Problem& problem, std::int64_t, std::int64_t) {
      return ladder::predicted_traffic_of_flash1(problem);
    },
    false,
    TILEWISE_CUDA,
    ladder::prepare_flash1,
    below_flash2,
    true};

constinit const Kernel kForwardStandard = {
    "cuda_standard",
    "S and P in memory, three kernels: attention as in the formula; bf16 and fp16, D up to "
    "128; rows next to a NaN may round differently",
    supports_whole<ladder::supports_standard>,
    [](const Problem& problem, std::int64_t) { return ladder::workspace_of_standard(problem); },
    ladder::run_standard,
    [](const Problem& problem, std::int64_t, std::int64_t) {
      return ladder::predicted_traffic_of_standard(problem);
    },
    false,
    TILEWISE_CUDA,
    ladder::prepare_standard,
    below_flash2,
    true};

constinit const Kernel kForwardReference = {
    "cuda_reference",
    "a block for each row, fp64 arithmetic, every option: the slow oracle of the GPU",
    supports_whole<check_device>,
    [](const Problem& problem, std::int64_t) { return table_bytes(problem); },
    run_reference_kernel,
    no_prediction,
    false,
    TILEWISE_CUDA,
    prepare_reference};

constinit const Kernel kBackwardReference = {
    "cuda_reference",
    "a block for each row of queries and of keys, fp64 arithmetic, every option: the slow oracle "
    "of "
    "the GPU",
    supports_whole<check_device>,
    gradient_workspace_bytes,
    run_reference_gradient_kernel,
    no_prediction,
    false,
    TILEWISE_CUDA,
    prepare_reference_gradient};

}  // namespace tilewise::cuda
