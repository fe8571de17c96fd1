// The kernels of the backward pass that read rows alone: the row statistics, and dSink.
#include "cuda/backward/query_tiles.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/host/sequences.cuh"
#include "cuda/tile/element.cuh"
#include "math/integer.h"
#include "math/softmax_state.h"

namespace tilewise::cuda::backward {
namespace {

constexpr int kThreads = 256;
constexpr int kRowLanes = 8;  // lanes that add up one row

// A row of O, of dO and of the statistics.
struct StatisticsRow {
  std::int64_t batch;
  std::int64_t head;
  std::int64_t row;  // of the tensors
};

// The lane's part of rowsum(O * dO), for rows whose chunks of 8 numbers are aligned.
template <class Half>
__device__ __forceinline__ float sum_chunks(const Problem& problem, const StatisticsRow& at) {
  const auto* const out =
      static_cast<const Half*>(problem.out.data) + problem.out.offset(at.batch, at.head, at.row);
  const auto* const dout =
      static_cast<const Half*>(problem.dout.data) + problem.dout.offset(at.batch, at.head, at.row);
  float sum = 0;
  for (std::int64_t c = threadIdx.x % kRowLanes * 8; c < problem.value_dim; c += kRowLanes * 8) {
    const uint4 a = *reinterpret_cast<const uint4*>(out + c);
    const uint4 b = *reinterpret_cast<const uint4*>(dout + c);
    const std::uint32_t left[4] = {a.x, a.y, a.z, a.w};
    const std::uint32_t right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto x = static_cast<std::uint16_t>(left[i / 2] >> (i % 2 * 16));
      const auto y = static_cast<std::uint16_t>(right[i / 2] >> (i % 2 * 16));
      sum += math::to_float(Half{x}) * math::to_float(Half{y});
    }
  }
  return sum;
}

// The lane's part of rowsum(O * dO) in fp32. A chunk is two vectors, of which the last chunk may
// have one.
__device__ __forceinline__ float sum_fp32_chunks(const Problem& problem, const StatisticsRow& at) {
  const auto* const out =
      static_cast<const float*>(problem.out.data) + problem.out.offset(at.batch, at.head, at.row);
  const auto* const dout =
      static_cast<const float*>(problem.dout.data) + problem.dout.offset(at.batch, at.head, at.row);
  float sum = 0;
  for (std::int64_t first = threadIdx.x % kRowLanes * 8; first < problem.value_dim;
       first += kRowLanes * 8) {
    const std::int64_t end = math::min(first + 8, problem.value_dim);
    for (std::int64_t c = first; c < end; c += 4) {
      const float4 a = *reinterpret_cast<const float4*>(out + c);
      const float4 b = *reinterpret_cast<const float4*>(dout + c);
      sum += a.x * b.x;
      sum += a.y * b.y;
      sum += a.z * b.z;
      sum += a.w * b.w;
    }
  }
  return sum;
}

// The lane's part of rowsum(O * dO) for any types and strides, in the same order.
__device__ __forceinline__ float sum_elements(const Problem& problem, const StatisticsRow& at) {
  const std::int64_t out = problem.out.offset(at.batch, at.head, at.row);
  const std::int64_t dout = problem.dout.offset(at.batch, at.head, at.row);
  float sum = 0;
  for (std::int64_t first = threadIdx.x % kRowLanes * 8; first < problem.value_dim;
       first += kRowLanes * 8) {
    const std::int64_t end = math::min(first + 8, problem.value_dim);
    for (std::int64_t c = first; c < end; ++c) {
      sum += static_cast<float>(read_element(problem.out, out + c)) *
             static_cast<float>(read_element(problem.dout, dout + c));
    }
  }
  return sum;
}

__device__ __forceinline__ float delta_of(const Parameters& parameters, const StatisticsRow& at) {
  const Problem& problem = parameters.problem;
  float sum = 0;
  if (!(parameters.aligned16.out && parameters.aligned16_dout)) {
    sum = sum_elements(problem, at);
  } else if (problem.dtype == TILEWISE_FP32) {
    sum = sum_fp32_chunks(problem, at);
  } else if (problem.dtype == TILEWISE_BF16) {
    sum = sum_chunks<math::BFloat16>(problem, at);
  } else {
    sum = sum_chunks<math::Float16>(problem, at);
  }
  for (int step = kRowLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (!problem.dlse.present()) return sum;
  const std::int64_t offset = problem.dlse.offset(at.batch, at.head, at.row);
  return sum - static_cast<const float*>(problem.dlse.data)[offset];
}

__device__ __forceinline__ float lse_of(const Problem& problem, const StatisticsRow& at) {
  const std::int64_t offset = problem.lse.offset(at.batch, at.head, at.row);
  return static_cast<const float*>(problem.lse.data)[offset];
}

// A block computes the statistics of one tile of queries.
__global__ void __launch_bounds__(kThreads, 2)
    preprocess_kernel(const __grid_constant__ Parameters parameters) {
  const Problem& problem = parameters.problem;
  const std::int32_t index = static_cast<std::int32_t>(blockIdx.x);
  if (parameters.ticket != nullptr && index == 0 && threadIdx.x == 0) *parameters.ticket = 0;
  if (index >= query_tiles(parameters)) return;
  const tile::TileCoord coord = query_tile_coord(parameters, index);
  const Sequence sequence = sequence_at(problem, parameters.table, coord.batch);
  const int q_tile = parameters.shape.q_tile;
  const std::int64_t number = first_query_tile(parameters, coord.batch, coord.head) + coord.q_tile;
  float* const statistics = parameters.statistics + number * 2 * q_tile;
  constexpr int kRows = kThreads / kRowLanes;
  for (int i = threadIdx.x / kRowLanes; i < math::round_up(q_tile, kRows); i += kRows) {
    const std::int64_t row = std::int64_t{coord.q_tile} * q_tile + i;
    const bool inside = row < sequence.q_len;
    const StatisticsRow at = {problem.q_packed ? 0 : sequence.batch, coord.head,
                              sequence.q_start + (inside ? row : sequence.q_len - 1)};
    const float delta = delta_of(parameters, at);
    if (threadIdx.x % kRowLanes != 0 || i >= q_tile) continue;
    const float lse = lse_of(problem, at);
    const bool has_keys = inside && lse != -math::Limits<float>::kInfinity;
    statistics[i] =
        has_keys ? lse * static_cast<float>(math::kLog2E) : math::Limits<float>::kInfinity;
    statistics[q_tile + i] = inside ? delta : 0;
  }
  if (parameters.turns != nullptr && threadIdx.x == 0) parameters.turns[number] = 0;
  if (parameters.dq_sums == nullptr) return;
  const int count = q_tile * parameters.shape.columns;
  float* const sums = parameters.dq_sums + number * count;
  for (int i = threadIdx.x * 4; i < count; i += kThreads * 4)
    *reinterpret_cast<float4*>(sums + i) = make_float4(0, 0, 0, 0);
}

// A block computes dSink of one head: -sum of exp(sink - LSE) * delta over all rows.
__global__ void __launch_bounds__(kThreads)
    sink_gradient_kernel(const __grid_constant__ Parameters parameters) {
  __shared__ double sums[kThreads];
  const Problem& problem = parameters.problem;
  const std::int32_t head = static_cast<std::int32_t>(blockIdx.x);
  const double sink = read_element(problem.sink, problem.sink.offset(0, head, 0));
  const int q_tile = parameters.shape.q_tile;
  double sum = 0;
  for (std::int32_t b = 0; b < problem.batch; ++b) {
    const Sequence sequence = sequence_at(problem, parameters.table, b);
    const float* const statistics =
        parameters.statistics + std::int64_t{first_query_tile(parameters, b, head)} * 2 * q_tile;
    for (std::int64_t row = threadIdx.x; row < sequence.q_len; row += kThreads) {
      const std::int64_t i = row / q_tile * 2 * q_tile + row % q_tile;
      const StatisticsRow at = {problem.q_packed ? 0 : sequence.batch, head,
                                sequence.q_start + row};
      const double prob = math::prob(sink, math::anchor<double>(lse_of(problem, at)));
      sum += math::combine<double>(prob, statistics[i + q_tile]);
    }
  }
  sums[threadIdx.x] = sum;
  for (int step = kThreads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < step) sums[threadIdx.x] += sums[threadIdx.x + step];
  }
  if (threadIdx.x == 0) write_element(problem.dsink, problem.dsink.offset(0, head, 0), -sums[0]);
}

}  // namespace

cudaError_t load_common_kernels() {
  const cudaError_t error = load(preprocess_kernel);
  return error == cudaSuccess ? load(sink_gradient_kernel) : error;
}

cudaError_t start_preprocess(const Parameters& parameters, std::int64_t tiles,
                             cudaStream_t stream) {
  // The first block sets the ticket, even if there is no tile.
  const std::int64_t blocks = parameters.ticket != nullptr ? math::max(tiles, 1) : tiles;
  if (blocks == 0) return cudaSuccess;
  return launch(preprocess_kernel, {blocks, kThreads}, stream, parameters);
}

cudaError_t start_sink_gradient(const Parameters& parameters, cudaStream_t stream) {
  const Problem& problem = parameters.problem;
  if (!problem.dsink.present() || problem.heads == 0) return cudaSuccess;
  return launch(sink_gradient_kernel, {problem.heads, kThreads}, stream, parameters);
}

}  // namespace tilewise::cuda::backward
