#include "cuda/decode/launch.h"

#include <cstddef>

#include "cuda/decode/kernel.h"
#include "cuda/decode/segment.h"
#include "cuda/host/device.h"
#include "cuda/host/instances.h"
#include "cuda/host/scheduling.h"
#include "cuda/host/sequences.cuh"
#include "cuda/sm80/host.h"
#include "cuda/tile/bands.h"
#include "math/integer.h"

namespace tilewise::cuda::decode {
namespace {

using problem::Checked;
using problem::fail;

// Rows of queries of a kv head, of the longest sequence.
std::int64_t most_rows(const Problem& problem) { return problem.group * problem.max_q; }

bool has_fp8(const Problem& problem) { return problem::is_fp8(problem.dtype); }
bool is_fp32(const Problem& problem) { return problem.dtype == TILEWISE_FP32; }

int row_for(const Problem& problem) {
  const std::int64_t columns = math::max(problem.head_dim, problem.value_dim);
  const std::int64_t bytes = sm80::shared_bytes(problem);
  if (has_fp8(problem)) return tile_row(kFp8Kernels, columns, most_rows(problem), bytes, false);
  if (is_fp32(problem)) return tile_row(kFp32Kernels, columns, most_rows(problem), bytes, false);
  const int at_phi =
      problem.phi.present() ? tile_row(kKernels, columns, most_rows(problem), bytes, true) : -1;
  return at_phi >= 0 ? at_phi : tile_row(kKernels, columns, most_rows(problem), bytes, false);
}

// The configuration but for bf16 or fp16, and e4m3 or e5m2, which change neither tiles nor blocks.
KernelConfig config_for(const Problem& problem) {
  const int row = row_for(problem);
  if (is_fp32(problem)) return kFp32Kernels[row].fp32_config();
  return has_fp8(problem) ? kFp8Kernels[row].fp8_config(false) : kKernels[row].config(false);
}

struct Instance {
  Load load;
  cudaError_t (*start)(const Parameters& parameters, cudaStream_t stream);
};

template <class Kernel>
constexpr Instance instance_of() {
  return {Kernel::load, Kernel::start};
}

const Instance& instance_for(const Problem& problem) {
  static constexpr auto kInstances = typed_instances_of<kKernelRows>(
      []<int kRow, bool kFp16>() { return instance_of<SplitKvKernel<kRow, kFp16>>(); });
  static constexpr auto kFp8Instances = typed_instances_of<kFp8KernelRows>(
      []<int kRow, bool kE5M2>() { return instance_of<Fp8SplitKvKernel<kRow, kE5M2>>(); });
  static constexpr auto kFp32Instances = instances_of<kFp32KernelRows>(
      []<int kRow>() { return instance_of<Fp32SplitKvKernel<kRow>>(); });
  const auto row = static_cast<std::size_t>(row_for(problem));
  if (is_fp32(problem)) return kFp32Instances[row];
  if (has_fp8(problem)) return kFp8Instances[row][problem.dtype == TILEWISE_E5M2 ? 1 : 0];
  return kInstances[row][problem.dtype == TILEWISE_FP16 ? 1 : 0];
}

// Without fixed parts, a unit is a tile of keys, and a block has at least kLeastKeys: at D 128 and
// 4096 keys 17.5 us, with 128 keys 18.5, with 512 18.0. A fixed part has kPartKeys keys.
constexpr std::int32_t kLeastKeys = 256;
constexpr std::int32_t kPartKeys = 1024;

std::int32_t unit_tiles(const Problem& problem, int block_keys) {
  return problem.batch_invariant ? kPartKeys / block_keys : 1;
}

// From 9.0 on, kernels are launched early, and those for fp8 run. The code for earlier devices does
// not wait for the kernel before it.
bool is_since_hopper(const Problem& problem) {
  constexpr std::int32_t kFirstMajor = 9;
  DeviceInfo device = {};
  return find_device(problem.device_index, &device) == TILEWISE_OK && device.major >= kFirstMajor;
}

// The blocks of a gang: a divisor of the number of kv heads. Eight heads of a token are 1 or 2 KB,
// which memory reads as one.
std::int32_t gang_of(const Problem& problem) {
  constexpr std::int64_t kMost = 8;
  for (std::int64_t gang = math::min(problem.kv_heads, kMost); gang > 1; --gang) {
    if (problem.kv_heads % gang == 0) return static_cast<std::int32_t>(gang);
  }
  return 1;
}

// Upper bounds for any lengths of the sequences.
struct Most {
  Checked sequence_units;
  Checked units;
  std::int64_t gangs;
  std::int64_t parts;
};

Most most_of(const Problem& problem) {
  const KernelConfig config = config_for(problem);
  const std::int32_t gang = gang_of(problem);
  const std::int64_t row_tiles = math::ceil_div(most_rows(problem), config.rows());
  const std::int64_t tiles = math::max(math::ceil_div(problem.max_k, config.block_keys()) + 1, 1);
  const std::int64_t units = math::ceil_div(tiles, unit_tiles(problem, config.block_keys()));
  DeviceInfo device = {};
  find_device(problem.device_index, &device);
  Most most = {};
  most.sequence_units = Checked{problem.kv_heads / gang} * Checked{row_tiles} * Checked{units};
  most.units = Checked{problem.batch} * most.sequence_units;
  const std::int64_t resident = std::int64_t{device.multiprocessors} * config.blocks / gang;
  most.gangs = math::min(math::max(resident, 1), math::max(most.units.value, 1));
  most.parts = problem.batch_invariant ? most.units.value : 2 * most.gangs;
  return most;
}

struct Workspace {
  Sequence* table = nullptr;
  float* part_out = nullptr;
  RowState* part_states = nullptr;

  Workspace(const Problem& problem, problem::Arena& arena) {
    const KernelConfig config = config_for(problem);
    const Checked rows =
        Checked{most_of(problem).parts} * Checked{gang_of(problem)} * Checked{config.rows()};
    table = arena.take<Sequence>(has_table(problem) ? problem.batch : 0);
    part_out = arena.take<float>(rows * Checked{config.columns});
    part_states = arena.take<RowState>(rows);
  }
};

// Fills in the units of a batch whose sequences have the same lengths.
void set_uniform_units(const Problem& problem, Parameters& parameters) {
  Segment segment = {};
  describe_sequence(parameters,
                    {0, 0, problem.q_rows, 0, problem.k_rows,
                     problem.top_left ? 0 : problem.k_rows - problem.q_rows},
                    segment);
  parameters.segment_units = segment.units;
  parameters.sequence_units = segment.segments * segment.units;
}

std::int32_t uniform_units(const Parameters& parameters) {
  return static_cast<std::int32_t>(parameters.problem.batch) * parameters.sequence_units;
}

// The gangs that have a share. Segments of less than twice the fewest keys are not cut while each
// can have a gang: then no second kernel has anything to merge.
void set_uniform_gangs(Parameters& parameters) {
  const std::int32_t units = uniform_units(parameters);
  const std::int32_t segments = units / parameters.segment_units;
  if (!parameters.fixed_parts && parameters.segment_units < 2 * parameters.least_units &&
      segments <= parameters.gangs) {
    parameters.least_units = 1;
    parameters.gangs = segments;
  }
  parameters.gangs = math::max(math::min(parameters.gangs, units / parameters.least_units), 1);
}

Parameters parameters_for(const Problem& problem, const Workspace& workspace) {
  const KernelConfig config = config_for(problem);
  Parameters parameters = {};
  parameters.problem = problem;
  parameters.fixed_parts = problem.batch_invariant;
  parameters.group = static_cast<std::int32_t>(problem.group);
  parameters.gang = gang_of(problem);
  parameters.head_tiles = static_cast<std::int32_t>(problem.kv_heads) / parameters.gang;
  parameters.gangs = static_cast<std::int32_t>(most_of(problem).gangs);
  parameters.least_units = problem.batch_invariant ? 1 : kLeastKeys / config.block_keys();
  parameters.q_tile = config.rows();
  parameters.block_keys = config.block_keys();
  parameters.unit_tiles = unit_tiles(problem, config.block_keys());
  parameters.window_left =
      static_cast<std::int32_t>(math::min(problem.window_left, tile::kMaxLength));
  parameters.window_right =
      static_cast<std::int32_t>(math::min(problem.window_right, tile::kMaxLength));
  parameters.uniform = !has_table(problem) && !problem.varlen_q() && !problem.seqused_k.present();
  if (parameters.uniform) {
    set_uniform_units(problem, parameters);
    set_uniform_gangs(parameters);
  }
  parameters.at_phi = config.at_phi;
  parameters.has_score_mod = sm80::needs_score_mod(problem);
  parameters.hides_keys = problem.mask.present() || problem.bias.present();
  parameters.wide_q = is_wide(problem.q, problem.head_dim);
  parameters.wide_out =
      problem.out.dtype != TILEWISE_FP32 && is_wide(problem.out, problem.value_dim);
  parameters.early = is_since_hopper(problem);
  parameters.columns = config.columns;
  parameters.scale_log2 =
      static_cast<float>((parameters.has_score_mod ? 1.0 : problem.scale) * math::kLog2E);
  if (has_table(problem)) parameters.table = workspace.table;
  parameters.part_out = workspace.part_out;
  parameters.part_states = workspace.part_states;
  parameters.scaling = tile::score_scaling_of(problem.scale, problem.softcap);
  parameters.pages = tile::pages_of(problem);
  parameters.q_parts = problem.q.dtype == TILEWISE_FP32 ? 2 : 1;
  return parameters;
}

// About as many parts as the segments are cut into; the candidates that may begin one of several.
CombineGrid combine_grid(const Parameters& parameters) {
  const Problem& problem = parameters.problem;
  const Most most = most_of(problem);
  const std::int64_t rows = math::min(most_rows(problem), std::int64_t{parameters.q_tile});
  std::int64_t segments = math::max(problem.batch * parameters.head_tiles, 1);
  if (parameters.uniform && !cuts_segments(parameters, uniform_units(parameters))) return {};
  std::int64_t candidates = parameters.gangs - 1;
  if (parameters.fixed_parts) {
    candidates = most.units.value;
  } else if (parameters.uniform) {
    candidates = segments = problem.batch * (parameters.sequence_units / parameters.segment_units);
  }
  // The order of a row's parts depends on it: with fixed parts it is the same for every batch.
  const std::int64_t parts = parameters.fixed_parts ? INT32_MAX : parameters.gangs / segments + 1;
  return {candidates, static_cast<std::int32_t>(rows), parts};
}

cudaError_t start(const Parameters& parameters, cudaStream_t stream) {
  const Problem& problem = parameters.problem;
  cudaError_t error = cudaSuccess;
  if (parameters.table != nullptr)
    error = fill_table(problem, const_cast<Sequence*>(parameters.table), stream);
  if (error == cudaSuccess) error = fill_unowned_rows(problem, parameters.table, stream);
  if (error != cudaSuccess || most_of(problem).units.value == 0) return error;
  error = instance_for(problem).start(parameters, stream);
  const CombineGrid grid = combine_grid(parameters);
  if (error != cudaSuccess || grid.candidates == 0) return error;
  return start_combine(parameters, grid, stream);
}

// Microseconds of cuda_decode and of the kernel after it in the registry.
struct Times {
  double own;
  double others;
};

// A model of what was measured on an H100 (bench/results/cuda/h100-decode-choice.txt). Of
// cuda_decode and cuda_sm90 it takes the slower one in two of the 18 rows, by 0.1 us and by a
// quarter. For fp32 it has the rate of cuda_fp32 on large problems, and no decode was timed.
Times estimate(const Problem& problem, double multiprocessors, bool beside_sm90) {
  constexpr double kStart = 5;
  constexpr double kBytes = 3.1e6;  // read from memory in a microsecond
  const auto rows = static_cast<double>(most_rows(problem));
  const auto keys = static_cast<double>(problem.max_k);
  const auto columns = static_cast<double>(problem.head_dim + problem.value_dim);
  const auto segments = static_cast<double>(problem.batch * problem.kv_heads);
  const auto bytes = static_cast<double>(problem::dtype_size(problem.dtype));
  const double reading = segments * keys * columns * bytes / kBytes;

  // A block spends some time on the end of each of its parts, and more with more rows.
  const KernelConfig config = config_for(problem);
  const double row_tiles = static_cast<double>(math::ceil_div(most_rows(problem), config.rows()));
  const double parts = segments * row_tiles / (multiprocessors * config.blocks);
  const double end_of_part = 3.5 + 0.3 * rows / row_tiles;
  Times times = {};
  times.own = kStart + reading * row_tiles + end_of_part * (parts > 1 ? parts : 1);

  // A block for each head and tile of queries, which takes a time for each key.
  const double row_time = is_fp32(problem) ? 110e-3 : 27e-3;
  const double key_time = (beside_sm90 ? 8.3e-3 : row_time) * columns / 256;
  const double resident = multiprocessors * (beside_sm90 ? 1 : 2);
  const std::int64_t q_tiles = math::ceil_div(problem.max_q, beside_sm90 ? 128 : 64);
  const double tiles = static_cast<double>(problem.batch * problem.heads * q_tiles) / resident;
  const double tile_time = keys * key_time + (beside_sm90 ? 1.1 : 4);
  const double computing = (tiles > 1 ? tiles : 1) * tile_time;
  times.others = kStart + (computing > reading ? computing : reading);
  return times;
}

}  // namespace

problem::Status supports(const Problem& problem) {
  const problem::Status device = check_device(problem);
  if (device != TILEWISE_OK) return device;
  if (has_fp8(problem) && !is_since_hopper(problem))
    return fail(TILEWISE_UNSUPPORTED, "k and v of fp8 need compute capability 9.0");
  if (problem.dtype == TILEWISE_FP64)
    return fail(TILEWISE_UNSUPPORTED, "k and v are fp64, must be fp32, bf16, fp16 or fp8");
  if (problem.slices.present()) return fail(TILEWISE_UNSUPPORTED, "slices");
  if (problem.dropout_p > 0) return fail(TILEWISE_UNSUPPORTED, "dropout");
  if (problem.q_packed && problem.batch_invariant)
    return fail(TILEWISE_UNSUPPORTED, "batch_invariant with packed queries");
  const std::int64_t most = most_columns(is_fp32(problem));
  if (math::max(problem.head_dim, problem.value_dim) > most) {
    return fail(TILEWISE_UNSUPPORTED, "D is %lld and Dv is %lld, must be at most %lld",
                static_cast<long long>(problem.head_dim), static_cast<long long>(problem.value_dim),
                static_cast<long long>(most));
  }
  if (!is_wide(problem.k, problem.head_dim) || !is_wide(problem.v, problem.value_dim)) {
    return fail(TILEWISE_UNSUPPORTED,
                "rows of k or v are not aligned to 16 bytes or no multiple of 16 bytes");
  }
  if (problem.page_table.present() && !tile::pages_fit_places(problem.page_table))
    return fail(TILEWISE_UNSUPPORTED, "pages of more than 2^32 keys");
  if (row_for(problem) < 0) {
    return fail(TILEWISE_UNSUPPORTED,
                "a block of the device has less than %d bytes of shared memory", kSmall);
  }
  constexpr std::int64_t kMostUnits = std::int64_t{1} << 30;
  const Checked units = most_of(problem).units;
  if (math::max(problem.q_rows, problem.k_rows) > tile::kMaxRows ||
      most_rows(problem) > tile::kMaxRows || !units.valid || units.value > kMostUnits) {
    return fail(TILEWISE_UNSUPPORTED, "more than %lld rows or %lld tiles of keys",
                static_cast<long long>(tile::kMaxRows), static_cast<long long>(kMostUnits));
  }
  return TILEWISE_OK;
}

const char* slower(const Problem& problem, bool beside_sm90) {
  constexpr const char* kReason = "a block for each query head is estimated to be faster";
  if (supports(problem) != TILEWISE_OK) return nullptr;  // supports() says why
  // Only cuda_reference comes after it.
  if (has_fp8(problem) && !beside_sm90) return nullptr;
  if (is_fp32(problem) && problem.page_table.present()) return nullptr;
  const std::int64_t rows = most_rows(problem);
  // Multiply-adds are the limit beyond one tile of rows, and cuda_fp32 has as many.
  constexpr std::int64_t kTileRows = 64;
  if (is_fp32(problem) && rows > kTileRows) return kReason;
  if (problem.batch_invariant) {
    // The other sequences of the batch have no say.
    constexpr std::int64_t kLongKeys = 4096;
    const bool is_long = may_ask_for_longest(problem) && problem.max_k >= kLongKeys;
    return rows <= 16 || (rows <= 64 && is_long) ? nullptr : kReason;
  }
  DeviceInfo device = {};
  find_device(problem.device_index, &device);
  const Times times = estimate(problem, device.multiprocessors, beside_sm90);
  return times.own <= times.others ? nullptr : kReason;
}

problem::Status prepare(const Problem& problem) {
  return load_kernels(problem.device_index,
                      {instance_for(problem).load, load_combine, load_sequence_kernels},
                      "loading cuda_decode");
}

std::int64_t workspace_bytes(const Problem& problem) {
  problem::Arena arena;
  Workspace workspace(problem, arena);
  return arena.bytes();
}

problem::Status run(const Problem& problem, const problem::RunContext& context) {
  if (problem.heads == 0 || problem.q_rows == 0) return TILEWISE_OK;
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  problem::Arena arena(context.workspace);
  const Workspace workspace(problem, arena);
  return check(start(parameters_for(problem, workspace), stream_of(context.executor->stream)),
               "starting cuda_decode");
}

}  // namespace tilewise::cuda::decode
