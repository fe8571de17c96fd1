// P = softmax(S), a block for each row; the row is read twice, for its state and for its weights.
#include "cuda/ladder/parameters.h"
#include "cuda/launch.cuh"
#include "cuda/load.h"
#include "cuda/ptx/number.cuh"
#include "cuda/sequences.cuh"
#include "math/philox.h"
#include "math/softmax_state.h"

namespace tilewise::cuda::ladder {
namespace {

constexpr int kThreads = 256;  // of a block

// A row of a head of a sequence, and its scores.
struct Row {
  Sequence sequence;
  std::int64_t head;
  std::int64_t row;      // of the sequence
  std::int64_t number;   // Parameters
  std::int32_t columns;  // that were written, whole tiles of keys: a multiple of 4
};

__device__ __forceinline__ float weight_of(float score, float anchor) {
  return ptx::exp2_approx((score - anchor) * static_cast<float>(math::kLog2E));
}

// The state of the row. Every thread gets it.
__device__ math::SoftmaxState<float> state_of(const float* scores, std::int32_t columns,
                                              math::SoftmaxState<float>* warps) {
  math::SoftmaxState<float> state = math::empty_state<float>();
  for (std::int32_t c = 4 * threadIdx.x; c < columns; c += 4 * kThreads) {
    const float4 four = *reinterpret_cast<const float4*>(scores + c);
    const float max = fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
    if (max > state.max) state = {max, state.sum * weight_of(state.max, max)};
    const float anchor = math::anchor(state.max);
    state.sum += (weight_of(four.x, anchor) + weight_of(four.y, anchor)) +
                 (weight_of(four.z, anchor) + weight_of(four.w, anchor));
  }
  for (int step = 16; step > 0; step /= 2) {
    const math::SoftmaxState<float> other = {__shfl_xor_sync(~0u, state.max, step),
                                             __shfl_xor_sync(~0u, state.sum, step)};
    // The same order in both lanes.
    state = (threadIdx.x & step) == 0 ? math::merge(state, other).state
                                      : math::merge(other, state).state;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = state;
  __syncthreads();
  state = warps[0];
  for (int w = 1; w < kThreads / 32; ++w) state = math::merge(state, warps[w]).state;
  return state;
}

__device__ void write_probs(const Parameters& parameters, const Row& row, float anchor,
                            float scale) {
  const Problem& problem = parameters.tiles.problem;
  const float* const scores = parameters.scores + row.number * parameters.score_stride;
  std::uint16_t* const probs = parameters.probs + row.number * parameters.score_stride;
  const math::DropoutRule rule =
      math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset);
  const std::int64_t head_index = row.sequence.batch * problem.heads + row.head;
  if (problem.dropout_p > 0) scale *= static_cast<float>(rule.keep_scale);
  for (std::int32_t c = 4 * threadIdx.x; c < row.columns; c += 4 * kThreads) {
    const float4 four = *reinterpret_cast<const float4*>(scores + c);
    float weights[4] = {weight_of(four.x, anchor), weight_of(four.y, anchor),
                        weight_of(four.z, anchor), weight_of(four.w, anchor)};
    for (float& weight : weights) weight *= scale;
    if (problem.dropout_p > 0) {
      const math::Philox4 words = math::dropout_words(rule, head_index, row.row, c / 4);
      for (int i = 0; i < 4; ++i) {
        if (words.word[i] < rule.threshold) weights[i] = 0;
      }
    }
    const bool fp16 = problem.dtype == TILEWISE_FP16;
    std::uint32_t pairs[2];
    for (int i = 0; i < 2; ++i) {
      pairs[i] = fp16 ? ptx::pack<true>(weights[2 * i], weights[2 * i + 1])
                      : ptx::pack<false>(weights[2 * i], weights[2 * i + 1]);
    }
    *reinterpret_cast<uint2*>(probs + c) = make_uint2(pairs[0], pairs[1]);
  }
}

__global__ void __launch_bounds__(kThreads)
    softmax_kernel(const __grid_constant__ Parameters parameters, std::int64_t rows,
                   std::int32_t k_tile) {
  __shared__ math::SoftmaxState<float> warps[kThreads / 32];
  const Problem& problem = parameters.tiles.problem;
  for (std::int64_t number = blockIdx.x; number < rows; number += gridDim.x) {
    const std::int64_t place = number % problem.q_rows;
    const std::int64_t head = number / problem.q_rows % problem.heads;
    const std::int64_t batch = number / problem.q_rows / problem.heads;
    const Sequence sequence = problem.q_packed
                                  ? owner_of(problem, parameters.tiles.table, place)
                                  : sequence_at(problem, parameters.tiles.table, batch);
    if (!owns(sequence, place)) continue;
    const std::int32_t tiles = (static_cast<std::int32_t>(sequence.k_len) + k_tile - 1) / k_tile;
    const Row row = {sequence, head, place - sequence.q_start, number, tiles * k_tile};
    const math::SoftmaxState<float> state =
        state_of(parameters.scores + number * parameters.score_stride, row.columns, warps);
    float sink = -math::Limits<float>::kInfinity;
    if (problem.sink.present())
      sink = static_cast<const float*>(problem.sink.data)[problem.sink.offset(0, head, 0)];
    const math::Finalised<float> closed = math::finalise(state, sink);
    write_probs(parameters, row, math::anchor(state.max), closed.scale);
    if (threadIdx.x != 0 || !problem.lse.present()) continue;
    static_cast<float*>(problem.lse.data)[problem.lse.offset(batch, head, place)] = closed.lse;
  }
}

}  // namespace

cudaError_t load_softmax() { return load(softmax_kernel); }

cudaError_t start_softmax(const Parameters& parameters, int k_tile, cudaStream_t stream) {
  constexpr std::int64_t kMostBlocks = std::int64_t{1} << 20;
  const Problem& problem = parameters.tiles.problem;
  const std::int64_t rows = (problem.q_packed ? 1 : problem.batch) * problem.heads * problem.q_rows;
  return launch(softmax_kernel, {math::lesser(rows, kMostBlocks), kThreads}, stream, parameters,
                rows, k_tile);
}

}  // namespace tilewise::cuda::ladder
