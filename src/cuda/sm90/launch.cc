#include "cuda/sm90/launch.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <initializer_list>

#include "cuda/device.h"
#include "cuda/sequences.cuh"
#include "cuda/sm90/choice.h"
#include "cuda/sm90/parameters.h"
#include "cuda/sm90/tensor_map.h"
#include "cuda/tile/fragment.h"
#include "cuda/traffic.h"
#include "cuda/work.h"
#include "math/config.h"
#include "math/integer.h"
#include "math/philox.h"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_bf16_plain[kFoldingRow];
extern const Instance kForward_fp16_plain[kFoldingRow];
extern const Instance kForward_bf16_narrow[kNarrowCount];
extern const Instance kForward_fp16_narrow[kNarrowCount];
extern const Instance kForward_bf16_long[2];  // of row kFoldingRow: the second one folds
extern const Instance kForward_fp16_long[2];
extern const Instance kForward_bf16_plain_wide[kTileRows - kWideRow];
extern const Instance kForward_fp16_plain_wide[kTileRows - kWideRow];
extern const Instance kForward_bf16_general[kWideRow];
extern const Instance kForward_fp16_general[kWideRow];
extern const Instance kForward_bf16_general_wide[kTileRows - kWideRow];
extern const Instance kForward_fp16_general_wide[kTileRows - kWideRow];

namespace {

using problem::Checked;
using problem::fail;

bool has_wide_out(const Problem& problem) {
  return problem.out.dtype == problem.dtype && is_wide(problem.out, problem.value_dim);
}

const Instance& narrow_instance(int row, bool fp16) {
  int i = 0;
  while (kNarrowRows[i] != row) ++i;
  return fp16 ? kForward_fp16_narrow[i] : kForward_bf16_narrow[i];
}

const Instance& plain_instance(int row, bool fp16) {
  if (row == kFoldingRow) return fp16 ? kForward_fp16_long[0] : kForward_bf16_long[0];
  return fp16 ? kForward_fp16_plain[row] : kForward_bf16_plain[row];
}

const Instance& instance_for(const Problem& problem, bool general) {
  const bool fp16 = problem.dtype == TILEWISE_FP16;
  const auto& [row, config] = choose(problem, general, has_wide_out(problem));
  if (row >= kWideRow) {
    const int wide = row - kWideRow;
    if (general) return fp16 ? kForward_fp16_general_wide[wide] : kForward_bf16_general_wide[wide];
    return fp16 ? kForward_fp16_plain_wide[wide] : kForward_bf16_plain_wide[wide];
  }
  if (general) return fp16 ? kForward_fp16_general[row] : kForward_bf16_general[row];
  if (config.folds) return fp16 ? kForward_fp16_long[1] : kForward_bf16_long[1];
  const Instance& plain = plain_instance(row, fp16);
  return config.narrow == plain.config.narrow ? plain : narrow_instance(row, fp16);
}

// A scale, and with it the kernel, may change from run to run of a plan: the worst of both.
struct Most {
  Checked work = Checked{0};
  Checked warps = Checked{0};

  explicit Most(const Problem& problem) {
    for (const bool general : {false, true}) {
      const std::int64_t q_tile = instance_for(problem, general).config.q_tile;
      const Checked own = most_work(problem, q_tile);
      const Checked own_warps = own * Checked{q_tile / tile::kWarpRows};
      if (work.valid && (!own.valid || own.value > work.value)) work = own;
      if (warps.valid && (!own_warps.valid || own_warps.value > warps.value)) warps = own_warps;
    }
  }
};

bool needs_lengths(const Problem& problem) {
  return has_table(problem) || problem.seqused_k.present();
}
// Of more sequences than a block lists, a kernel before does.
bool has_kernel_before(const Problem& problem) {
  return needs_lengths(problem) && problem.batch > kMostListed;
}

// Tiles of very different lengths are taken from a counter, others in turns fixed beforehand.
bool counts(const Problem& problem) { return has_diagonal(problem) || needs_lengths(problem); }

// Of a launch: no other has it in this process, and hardly any word of memory that has been
// something else. Never 0.
std::uint64_t launch_number() {
  static std::atomic<std::uint64_t> last{[] {
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    const math::Philox4 words = math::philox_4x32_10({}, static_cast<std::uint64_t>(now));
    return std::uint64_t{words.word[0]} << 32 | words.word[1];
  }()};
  return last.fetch_add(2, std::memory_order_relaxed) | 1;
}

// The parts of the workspace.
struct Workspace : problem::Arena {
  std::int64_t lengths = 0;
  std::int64_t tile_starts = 0;
  std::int64_t counter = 0;
  std::int64_t marks = 0;

  explicit Workspace(const Problem& problem) {
    const bool listed = has_kernel_before(problem);
    lengths = reserve(Checked{listed ? problem.batch : 0} * Checked{sizeof(Lengths)}).value;
    tile_starts = reserve(Checked{listed ? (problem.batch + 1) * 4 : 0}).value;
    counter = reserve(Checked{counts(problem) ? std::int64_t{sizeof(Counter)} : 0}).value;
    marks = reserve(Most(problem).warps * Checked{sizeof(*Parameters::marks)}).value;
  }
};

Rows rows_of_q(const Problem& problem) {
  return {"q",           problem.q,      problem.q_packed ? 1 : problem.batch,
          problem.heads, problem.q_rows, problem.head_dim};
}
Rows rows_of_k(const Problem& problem) {
  return {"k",
          problem.k,
          problem.k_packed ? 1 : problem.batch,
          problem.kv_heads,
          problem.k_rows,
          problem.head_dim};
}
Rows rows_of_v(const Problem& problem) {
  return {"v",
          problem.v,
          problem.k_packed ? 1 : problem.batch,
          problem.kv_heads,
          problem.k_rows,
          problem.value_dim};
}

Rows rows_of_out(const Problem& problem) {
  return {"out",         problem.out,    problem.q_packed ? 1 : problem.batch,
          problem.heads, problem.q_rows, problem.value_dim};
}

problem::Status check_strides(const Problem& problem) {
  for (const Rows& rows : {rows_of_q(problem), rows_of_k(problem), rows_of_v(problem)}) {
    const problem::Status status = check_map(rows);
    if (status != TILEWISE_OK) return status;
  }
  return TILEWISE_OK;
}

problem::Status check_hopper(std::int32_t index) {
  DeviceInfo device;
  const problem::Status found = find_device(index, &device);
  if (found != TILEWISE_OK) return found;
  if (device.major == 9 && device.minor == 0) return find_encoder();
  return fail(TILEWISE_UNSUPPORTED, "%s has compute capability %d.%d, this kernel is for 9.0",
              device.name, device.major, device.minor);
}

problem::Status check_options(const Problem& problem) {
  const struct {
    const char* name;
    bool given;
  } options[] = {{"mask", problem.mask.present()},
                 {"bias", problem.bias.present()},
                 {"slices", problem.slices.present()},
                 {"dropout_p", problem.dropout_p > 0}};
  for (const auto& [name, given] : options) {
    if (given) return fail(TILEWISE_UNSUPPORTED, "%s is given", name);
  }
  return TILEWISE_OK;
}

problem::Status check_sizes(const Problem& problem) {
  constexpr std::int64_t kMostColumns = 256;
  constexpr std::int64_t kColumnStep = 8;
  const std::int64_t widest = math::max(problem.head_dim, problem.value_dim);
  if (widest > kMostColumns || problem.head_dim % kColumnStep != 0 ||
      problem.value_dim % kColumnStep != 0) {
    return fail(TILEWISE_UNSUPPORTED, "D is %lld and Dv is %lld, must be multiples of 8 up to 256",
                static_cast<long long>(problem.head_dim),
                static_cast<long long>(problem.value_dim));
  }
  const std::int64_t longest = math::max(problem.q_rows, problem.k_rows);
  const Checked work = Most(problem).work;
  if (longest > tile::kLongest || !work.valid || work.value > tile::kMostWork) {
    return fail(TILEWISE_UNSUPPORTED, "more than %d rows or %lld tiles of queries", tile::kLongest,
                static_cast<long long>(tile::kMostWork));
  }
  return TILEWISE_OK;
}

problem::Status make_maps(const Problem& problem, const KernelConfig& config,
                          Parameters* parameters) {
  TensorMap map;
  const problem::Status q = make_map(rows_of_q(problem), tile::kRows, config.fp16, &map);
  if (q != TILEWISE_OK) return q;
  parameters->q = parameters->k = parameters->v = parameters->out = map.map;
  parameters->finding.q_steps = parameters->finding.k_steps = parameters->v_steps = map.steps;
  if (parameters->mapped_stores) {
    const problem::Status out = make_map(rows_of_out(problem), tile::kRows, config.fp16, &map);
    if (out != TILEWISE_OK) return out;
    parameters->out = map.map;
    parameters->out_steps = map.steps;
  }
  if (problem.k_rows == 0) return TILEWISE_OK;  // nobody asks for a tile of them
  const problem::Status k = make_map(rows_of_k(problem), config.k_tile, config.fp16, &map);
  if (k != TILEWISE_OK) return k;
  parameters->k = map.map;
  parameters->finding.k_steps = map.steps;
  const problem::Status v = make_map(rows_of_v(problem), config.k_tile, config.fp16, &map);
  if (v != TILEWISE_OK) return v;
  parameters->v = map.map;
  parameters->v_steps = map.steps;
  return TILEWISE_OK;
}

// schedule: of dense queries.
void fill_finding(const Problem& problem, const Schedule& schedule, std::byte* workspace,
                  Finding* finding) {
  const Workspace places(problem);
  finding->q_packed = problem.q_packed;
  finding->top_left = problem.top_left;
  finding->open_end = problem.k_packed || problem.seqused_k.present();
  finding->window_left = in_reach(problem.window_left);
  finding->window_right = in_reach(problem.window_right);
  finding->group = tile::Divisor(static_cast<std::int32_t>(problem.group));
  finding->listed = needs_lengths(problem) && !has_kernel_before(problem);
  if (has_kernel_before(problem)) {
    finding->sequences = {reinterpret_cast<const Lengths*>(workspace + places.lengths),
                          reinterpret_cast<const std::int32_t*>(workspace + places.tile_starts)};
  }
  finding->whole = {0, static_cast<std::int32_t>(problem.q_rows), 0,
                    static_cast<std::int32_t>(problem.k_rows)};
  if (!problem.q_packed) finding->schedule = tile::PreparedSchedule(schedule);
  finding->packed = packed_schedule_of(problem, nullptr);
}

tile::Dealing dealing_of(const Problem& problem, const KernelConfig& config,
                         const Schedule& schedule, std::int32_t blocks) {
  const std::int64_t left = problem.window_left;
  if (!counts(problem))
    return tile::deal_all(left < 0 ? math::ceil_div(problem.k_rows, config.k_tile) : 0);
  if (left < 0 || needs_lengths(problem) || problem.q_rows != problem.k_rows) return {};
  return tile::deal_window(schedule, config.q_tile, config.k_tile, math::min(left, problem.q_rows),
                           blocks);
}

void fill_parameters(const Problem& problem, const KernelConfig& config, std::byte* workspace,
                     Parameters* parameters) {
  const Workspace places(problem);
  const double scale = config.general ? 1.0 : problem.scale;
  parameters->problem = problem;
  if (counts(problem)) {
    parameters->counter = reinterpret_cast<Counter*>(workspace + places.counter);
    parameters->launch = launch_number();
  }
  parameters->marks = reinterpret_cast<unsigned long long*>(workspace + places.marks);
  parameters->unit = static_cast<float>(scale * math::kLog2E);
  parameters->scaling = tile::scaling_of(problem.scale, problem.softcap);
  parameters->lse_unit = static_cast<float>(math::kLn2);
  parameters->out_bytes = problem.out.dtype == TILEWISE_FP32 ? 4 : 2;
  parameters->out_step = 4 * problem.out.row * parameters->out_bytes;
  parameters->lse_step = 8 * problem.lse.row * std::int64_t{sizeof(float)};
  parameters->wide_stores = has_wide_out(problem);
  parameters->mapped_stores =
      config.has_carriers() && parameters->wide_stores && has_map(rows_of_out(problem));
}

// Every launch in the order of the stream; nothing waits.
cudaError_t start(const Parameters& parameters, const Instance& instance, int blocks,
                  cudaStream_t stream) {
  const Finding& finding = parameters.finding;
  if (finding.sequences.lengths != nullptr) {
    const cudaError_t error = start_prepare(parameters, instance.config.q_tile, stream);
    if (error != cudaSuccess) return error;
  }
  return instance.start(parameters, blocks, stream);
}

}  // namespace

problem::Status supports(const Problem& problem) {
  const problem::Status device = check_hopper(problem.device_index);
  if (device != TILEWISE_OK) return device;
  if (problem.dtype != TILEWISE_BF16 && problem.dtype != TILEWISE_FP16)
    return fail(TILEWISE_UNSUPPORTED, "q, k and v are not bf16 or fp16");
  const problem::Status options = check_options(problem);
  if (options != TILEWISE_OK) return options;
  const problem::Status sizes = check_sizes(problem);
  return sizes != TILEWISE_OK ? sizes : check_strides(problem);
}

problem::Status prepare(const Problem& problem) {
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  for (const bool general : {false, true}) {
    const problem::Status loaded =
        check(instance_for(problem, general).load(), "loading cuda_sm90");
    if (loaded != TILEWISE_OK) return loaded;
  }
  return check(load_support(), "loading cuda_sm90");
}

std::int64_t workspace_bytes(const Problem& problem) {
  const Checked bytes = Workspace(problem).used();
  return bytes.valid ? bytes.value : -1;
}

double predicted_traffic(const Problem& problem) {
  const KernelConfig& config = instance_for(problem, is_general(problem)).config;
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
  const Instance& instance = instance_for(problem, is_general(problem));
  Parameters parameters = {};
  const Schedule schedule =
      tile::in_rounds(schedule_of(problem, instance.config.q_tile), device.multiprocessors,
                      static_cast<std::int32_t>(problem.group));
  auto* const workspace = static_cast<std::byte*>(context.workspace);
  fill_finding(problem, schedule, workspace, &parameters.finding);
  std::int32_t blocks = device.multiprocessors;
  if (!problem.q_packed && schedule.count() < blocks) blocks = schedule.count();
  parameters.finding.dealing = dealing_of(problem, instance.config, schedule, blocks);
  fill_parameters(problem, instance.config, workspace, &parameters);
  const problem::Status mapped = make_maps(problem, instance.config, &parameters);
  if (mapped != TILEWISE_OK) return mapped;
  count_traffic(problem, schedule, {instance.config.q_tile, instance.config.k_tile},
                context.traffic);
  return check(start(parameters, instance, blocks, stream_of(context.executor->stream)),
               "starting cuda_sm90");
}

}  // namespace tilewise::cuda::sm90
