#include "cuda/forward/sm90/launch.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <initializer_list>

#include "cuda/forward/sm90/parameters.h"
#include "cuda/forward/sm90/select.h"
#include "cuda/host/bands.h"
#include "cuda/host/device.h"
#include "cuda/host/instances.h"
#include "cuda/host/scheduling.h"
#include "cuda/host/sequences.cuh"
#include "cuda/host/tensor_map.h"
#include "cuda/host/traffic.h"
#include "cuda/mask/block_mask.h"
#include "cuda/tile/fragment.h"
#include "math/config.h"
#include "math/integer.h"
#include "math/philox.h"

namespace tilewise::cuda::sm90 {
namespace {

using problem::Checked;
using problem::fail;

bool has_vector_out(const Problem& problem) {
  const bool is_type = problem::is_fp8(problem.dtype) ? problem.out.dtype == TILEWISE_BF16 ||
                                                            problem.out.dtype == TILEWISE_FP16
                                                      : problem.out.dtype == problem.dtype;
  return is_type && is_wide(problem.out, problem.value_dim);
}

mask::Tiling tiling_of(const KernelConfig& config) {
  return {mask::Owner::kQueries, config.q_tile, config.k_tile};
}

struct Instance {
  KernelConfig config;
  Load load;
  cudaError_t (*start)(const Parameters& parameters, int blocks, cudaStream_t stream);
};

const Instance& fp8_instance_for(const Problem& problem) {
  static constexpr auto kInstances = typed_instances_of<kFp8KernelRows>([]<int kRow, bool kE5M2>() {
    using Kernel = Fp8ForwardKernel<kRow, kE5M2>;
    return Instance{kFp8Kernels[kRow].config(kE5M2), Kernel::load, Kernel::start};
  });
  const auto row = static_cast<std::size_t>(select_fp8_kernel(problem));
  return kInstances[row][problem.dtype == TILEWISE_E5M2 ? 1 : 0];
}

const Instance& instance_for(const Problem& problem, bool score_mod) {
  if (problem::is_fp8(problem.dtype)) return fp8_instance_for(problem);
  static constexpr auto kInstances = typed_instances_of<kKernelRows>([]<int kRow, bool kFp16>() {
    using Kernel = ForwardKernel<kRow, kFp16>;
    return Instance{kKernels[kRow].config(kFp16), Kernel::load, Kernel::start};
  });
  const auto row =
      static_cast<std::size_t>(select_kernel(problem, score_mod, has_vector_out(problem)));
  return kInstances[row][problem.dtype == TILEWISE_FP16 ? 1 : 0];
}

// The most query tiles of a launch. The scale, and with it the kernel, may change from run to run
// of a plan: this is the larger number of both kernels.
Checked most_tiles(const Problem& problem) {
  Checked tiles = Checked{0};
  for (const bool score_mod : {false, true}) {
    const Checked own = max_tiles(problem, instance_for(problem, score_mod).config.q_tile);
    if (tiles.valid && (!own.valid || own.value > tiles.value)) tiles = own;
  }
  return tiles;
}
// Entries of Parameters::handovers: a launch has at most as many blocks as the device has
// multiprocessors.
Checked most_handovers(const Problem& problem) {
  DeviceInfo device;
  const bool needed = instance_for(problem, false).config.has_careful_kernel() ||
                      instance_for(problem, true).config.has_careful_kernel();
  if (!needed || find_device(problem.device_index, &device) != TILEWISE_OK) return Checked{0};
  return Checked{device.multiprocessors};
}

bool needs_lengths(const Problem& problem) {
  return problem.varlen_q() || problem.k_packed || problem.seqused_k.present();
}
// A kernel before this one lists the sequences: there are more than a block lists itself.
bool has_kernel_before(const Problem& problem) {
  return needs_lengths(problem) && problem.batch > kMaxListed;
}

// Where query tiles have very different numbers of keys, blocks take them from a counter; else the
// schedule is static.
bool schedules_dynamically(const Problem& problem) {
  return has_diagonal(problem) || needs_lengths(problem) || needs_block_mask(problem);
}

// A number that no other launch of this process has, and hardly any memory holds by chance. Never
// 0.
std::uint64_t launch_number() {
  static std::atomic<std::uint64_t> last{[] {
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    const math::Philox4 words = math::philox_4x32_10({}, static_cast<std::uint64_t>(now));
    return std::uint64_t{words.word[0]} << 32 | words.word[1];
  }()};
  return last.fetch_add(2, std::memory_order_relaxed) | 1;
}

// The offsets of the workspace's arrays.
struct Workspace : problem::Arena {
  std::int64_t parts = 0;
  std::int64_t lengths = 0;
  std::int64_t tile_starts = 0;
  std::int64_t counter = 0;
  std::int64_t links = 0;
  std::int64_t handovers = 0;
  mask::BlockMaskPlaces block_mask;
  std::int64_t bands = 0;

  explicit Workspace(const Problem& problem) {
    const bool listed = has_kernel_before(problem);
    parts = reserve(Checked{problem.parts.present() ? table_bytes(problem) : 0}).value;
    lengths = reserve(Checked{listed ? problem.batch : 0} * Checked{sizeof(SequenceLengths)}).value;
    tile_starts = reserve(Checked{listed ? (problem.batch + 1) * 4 : 0}).value;
    counter =
        reserve(Checked{schedules_dynamically(problem) ? std::int64_t{sizeof(TileCounter)} : 0})
            .value;
    links = reserve(most_tiles(problem) * Checked{sizeof(*Parameters::links)}).value;
    handovers = reserve(most_handovers(problem) * Checked{sizeof(Handover)}).value;
    if (!needs_block_mask(problem)) return;
    block_mask = mask::reserve_block_mask(problem,
                                          {tiling_of(instance_for(problem, false).config),
                                           tiling_of(instance_for(problem, true).config)},
                                          *this);
    bands = reserve(Checked{band_table_bytes(problem)}).value;
  }
};

Rows rows_of_q(const Problem& problem) { return q_side("q", problem.q, problem, problem.head_dim); }
Rows rows_of_k(const Problem& problem) { return k_side("k", problem.k, problem, problem.head_dim); }
Rows rows_of_v(const Problem& problem) {
  return k_side("v", problem.v, problem, problem.value_dim);
}
Rows rows_of_out(const Problem& problem) {
  return q_side("out", problem.out, problem, problem.value_dim);
}

problem::Status check_strides(const Problem& problem) {
  return check_maps({rows_of_q(problem), rows_of_k(problem), rows_of_v(problem)});
}

problem::Status check_options(const Problem& problem) {
  return mask::check_options(problem, {{"bias", problem.bias.present()},
                                       {"page_table", problem.page_table.present()},
                                       {"dropout_p", problem.dropout_p > 0}});
}

// Refuses the options that the kernels for fp8 lack.
problem::Status check_fp8_options(const Problem& problem) {
  if (problem.q.dtype != problem.dtype)
    return fail(TILEWISE_UNSUPPORTED, "q is not of fp8, k and v are");
  if (problem.mask.present()) return fail(TILEWISE_UNSUPPORTED, "mask is given for fp8");
  if (problem.slices.present()) return fail(TILEWISE_UNSUPPORTED, "slices is given for fp8");
  return TILEWISE_OK;
}

problem::Status check_sizes(const Problem& problem) {
  const bool fp8 = problem::is_fp8(problem.dtype);
  const std::int64_t most = fp8 ? 128 : 256;
  const std::int64_t step = fp8 ? 16 : 8;  // of 16 bytes
  if (math::max(problem.head_dim, problem.value_dim) > most || problem.head_dim % step != 0 ||
      problem.value_dim % step != 0) {
    return fail(TILEWISE_UNSUPPORTED,
                "D is %lld and Dv is %lld, must be multiples of %lld up to %lld",
                static_cast<long long>(problem.head_dim), static_cast<long long>(problem.value_dim),
                static_cast<long long>(step), static_cast<long long>(most));
  }
  const std::int64_t longest = math::max(problem.q_rows, problem.k_rows);
  const Checked work = most_tiles(problem);
  if (longest > tile::kMaxLength || !work.valid || work.value > tile::kMaxTiles) {
    return fail(TILEWISE_UNSUPPORTED, "more than %d rows or %lld tiles of queries",
                tile::kMaxLength, static_cast<long long>(tile::kMaxTiles));
  }
  if (!needs_block_mask(problem)) return TILEWISE_OK;
  return mask::check_block_mask(problem, tiling_of(instance_for(problem, false).config));
}

problem::Status make_maps(const Problem& problem, const KernelConfig& config,
                          Parameters* parameters) {
  TensorMap map;
  const problem::Status q = make_map(rows_of_q(problem), tile::kRows, &map);
  if (q != TILEWISE_OK) return q;
  parameters->q = parameters->k = parameters->v = parameters->out = map.map;
  parameters->scheduler.q_coords = parameters->scheduler.k_coords = parameters->v_coords =
      map.coords;
  if (parameters->tma_stores) {
    const problem::Status out = make_map(rows_of_out(problem), tile::kRows, &map);
    if (out != TILEWISE_OK) return out;
    parameters->out = map.map;
    parameters->out_coords = map.coords;
  }
  if (problem.k_rows == 0) return TILEWISE_OK;  // K and V are not loaded
  const problem::Status k = make_map(rows_of_k(problem), config.k_tile, &map);
  if (k != TILEWISE_OK) return k;
  parameters->k = map.map;
  parameters->scheduler.k_coords = map.coords;
  const problem::Status v = make_map(rows_of_v(problem), config.k_tile, &map);
  if (v != TILEWISE_OK) return v;
  parameters->v = map.map;
  parameters->v_coords = map.coords;
  return TILEWISE_OK;
}

// schedule: of dense queries of one length.
void fill_scheduler(const Problem& problem, const Schedule& schedule, std::byte* workspace,
                    SchedulerParams* scheduler) {
  const Workspace places(problem);
  scheduler->varlen_q = problem.varlen_q();
  if (problem.parts.present())
    scheduler->parts = reinterpret_cast<const Sequence*>(workspace + places.parts);
  scheduler->top_left = problem.top_left;
  scheduler->open_end = problem.k_packed || problem.seqused_k.present();
  scheduler->window_left = clamped_length(problem.window_left);
  scheduler->window_right = clamped_length(problem.window_right);
  scheduler->group = tile::FastDivmod(static_cast<std::int32_t>(problem.group));
  scheduler->listed = needs_lengths(problem) && !has_kernel_before(problem);
  if (has_kernel_before(problem)) {
    scheduler->sequences = {reinterpret_cast<const SequenceLengths*>(workspace + places.lengths),
                            reinterpret_cast<const std::int32_t*>(workspace + places.tile_starts)};
  }
  scheduler->whole = {0, static_cast<std::int32_t>(problem.q_rows), 0,
                      static_cast<std::int32_t>(problem.k_rows)};
  if (!problem.varlen_q()) scheduler->schedule = tile::FastSchedule(schedule);
  scheduler->packed = packed_schedule_of(problem, nullptr);
  if (needs_block_mask(problem)) scheduler->packed.longest_first = true;
}

tile::StaticRounds static_rounds_of(const Problem& problem, const KernelConfig& config,
                                    const Schedule& schedule, std::int32_t blocks) {
  const std::int64_t left = problem.window_left;
  if (!schedules_dynamically(problem))
    return tile::all_rounds_static(left < 0 ? math::ceil_div(problem.k_rows, config.k_tile) : 0);
  if (left < 0 || needs_lengths(problem) || problem.parts.present() || config.block_mask ||
      problem.q_rows != problem.k_rows)
    return {};
  return tile::static_window_rounds(schedule, config.q_tile, config.k_tile,
                                    math::min(left, problem.q_rows), blocks);
}

void fill_parameters(const Problem& problem, const KernelConfig& config, std::byte* workspace,
                     Parameters* parameters) {
  const Workspace places(problem);
  const double scale = config.score_mod ? 1.0 : problem.scale;
  parameters->problem = problem;
  if (schedules_dynamically(problem)) {
    parameters->counter = reinterpret_cast<TileCounter*>(workspace + places.counter);
    parameters->launch = launch_number();
  }
  parameters->links = reinterpret_cast<unsigned long long*>(workspace + places.links);
  parameters->handovers = reinterpret_cast<Handover*>(workspace + places.handovers);
  if (config.block_mask) {
    parameters->block_mask =
        mask::block_mask_at(problem, tiling_of(config), places.block_mask, workspace,
                            reinterpret_cast<const tile::Band*>(workspace + places.bands));
  }
  parameters->scale_log2 = static_cast<float>(scale * math::kLog2E);
  parameters->scaling = tile::score_scaling_of(problem.scale, problem.softcap);
  parameters->ln2 = static_cast<float>(math::kLn2);
  parameters->out_bytes = problem.out.dtype == TILEWISE_FP32 ? 4 : 2;
  parameters->out_step = 4 * problem.out.row * parameters->out_bytes;
  parameters->lse_step = 8 * problem.lse.row * std::int64_t{sizeof(float)};
  parameters->vector_stores = has_vector_out(problem);
  parameters->tma_stores =
      config.has_epilogue_warps() && parameters->vector_stores && has_map(rows_of_out(problem));
}

// Launches everything in the order of the stream; nothing waits.
cudaError_t start(const Parameters& parameters, const Instance& instance, int blocks,
                  cudaStream_t stream) {
  const SchedulerParams& scheduler = parameters.scheduler;
  if (scheduler.parts != nullptr) {
    const cudaError_t error =
        fill_table(parameters.problem, const_cast<Sequence*>(scheduler.parts), stream);
    if (error != cudaSuccess) return error;
  }
  if (scheduler.sequences.lengths != nullptr) {
    const cudaError_t error = start_prepare(parameters, instance.config.q_tile, stream);
    if (error != cudaSuccess) return error;
  }
  const KernelConfig& config = instance.config;
  if (config.block_mask) {
    const tile::BlockMask& block_mask = parameters.block_mask;
    const bool counts = !parameters.problem.mask.present();
    cudaError_t error = start_bands(parameters.problem, block_mask.bands, stream,
                                    counts ? block_mask.used : nullptr);
    if (error != cudaSuccess) return error;
    error = mask::start_block_mask(
        {parameters.problem, block_mask, scheduler.window_left, scheduler.window_right},
        tiling_of(config), stream);
    if (error != cudaSuccess) return error;
  }
  return instance.start(parameters, blocks, stream);
}

}  // namespace

problem::Status supports(const Problem& problem) {
  const problem::Status device = check_hopper(problem.device_index);
  if (device != TILEWISE_OK) return device;
  const bool fp8 = problem::is_fp8(problem.dtype);
  if (problem.dtype != TILEWISE_BF16 && problem.dtype != TILEWISE_FP16 && !fp8)
    return fail(TILEWISE_UNSUPPORTED, "q, k and v are not bf16, fp16 or fp8");
  problem::Status options = check_options(problem);
  if (options == TILEWISE_OK && fp8) options = check_fp8_options(problem);
  if (options != TILEWISE_OK) return options;
  const problem::Status sizes = check_sizes(problem);
  return sizes != TILEWISE_OK ? sizes : check_strides(problem);
}

problem::Status prepare(const Problem& problem) {
  return load_kernels(problem.device_index,
                      {instance_for(problem, false).load, instance_for(problem, true).load,
                       load_sequence_kernels, mask::load_block_mask_kernels, load_support},
                      "loading cuda_sm90");
}

std::int64_t workspace_bytes(const Problem& problem) { return Workspace(problem).bytes(); }

double predicted_traffic(const Problem& problem) {
  const KernelConfig& config = instance_for(problem, needs_score_mod(problem)).config;
  return cuda::predicted_traffic(problem, {config.q_tile, config.k_tile});
}

problem::Status run(const Problem& problem, const problem::RunContext& context) {
  if (problem.batch == 0 && !problem.q_packed) return TILEWISE_OK;
  if (problem.heads == 0 || problem.q_rows == 0) return TILEWISE_OK;
  const problem::Status strides = check_strides(problem);
  if (strides != TILEWISE_OK) return strides;
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  DeviceInfo device;
  const problem::Status found = find_device(problem.device_index, &device);
  if (found != TILEWISE_OK) return found;
  const Instance& instance = instance_for(problem, needs_score_mod(problem));
  Parameters parameters = {};
  const Schedule schedule =
      tile::with_small_swizzle(schedule_of(problem, instance.config.q_tile,
                                           has_diagonal(problem) || instance.config.block_mask),
                               device.multiprocessors, static_cast<std::int32_t>(problem.group));
  auto* const workspace = static_cast<std::byte*>(context.workspace);
  fill_scheduler(problem, schedule, workspace, &parameters.scheduler);
  std::int32_t blocks = device.multiprocessors;
  if (!problem.varlen_q() && schedule.count() < blocks) blocks = schedule.count();
  parameters.scheduler.static_rounds = static_rounds_of(problem, instance.config, schedule, blocks);
  fill_parameters(problem, instance.config, workspace, &parameters);
  const problem::Status mapped = make_maps(problem, instance.config, &parameters);
  if (mapped != TILEWISE_OK) return mapped;
  count_traffic(problem, schedule, {instance.config.q_tile, instance.config.k_tile},
                context.traffic);
  return check(start(parameters, instance, blocks, stream_of(context.executor->stream)),
               "starting cuda_sm90");
}

}  // namespace tilewise::cuda::sm90
