// P = softmax(S). A block computes a row; it reads the row twice, for the state and for the probs.
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/host/sequences.cuh"
#include "cuda/ladder/parameters.h"
#include "cuda/ptx/arithmetic.cuh"
#include "math/integer.h"
#include "math/philox.h"
#include "math/softmax_state.h"

namespace tilewise::cuda::ladder {
namespace {

// Threads of a block: each has a few scores, and the rows in flight fit L2.
constexpr int kMaxThreads = 256;
constexpr int kFewThreads = 128;
constexpr std::int64_t kShortRow = 2048;

// A row of a head of a sequence, and its scores.
struct Row {
  Sequence sequence;
  std::int64_t head;
  std::int64_t row;      // of the sequence
  std::int64_t number;   // in Parameters
  std::int32_t columns;  // in whole tiles of keys: a multiple of 4
};

__device__ __forceinline__ float exp2_prob(float score, float anchor) {
  return ptx::exp2_approx((score - anchor) * static_cast<float>(math::kLog2E));
}

// Reduces a number of each thread to the maximum or the sum. Every thread gets the result.
template <bool kMaximum>
__device__ __forceinline__ float reduce(float x, float* warps /* (kMaxThreads / 32) */) {
  const auto combine = [](float a, float b) { return kMaximum ? fmaxf(a, b) : a + b; };
  for (int step = 16; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(~0u, x, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = warps[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) x = combine(x, warps[w]);
  return x;
}

// The state of the row. Each thread computes the state of its scores; then they are merged. Every
// thread gets the result.
__device__ math::SoftmaxState<float> state_of(const float* scores, std::int32_t columns,
                                              float* warps /* (kMaxThreads / 32) */) {
  const std::int32_t step = 4 * static_cast<std::int32_t>(blockDim.x);
  math::SoftmaxState<float> state = math::empty_state<float>();
  for (std::int32_t c = 4 * threadIdx.x; c < columns; c += step) {
    const float4 four = *reinterpret_cast<const float4*>(scores + c);
    const float max = fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
    if (max > state.max) state = {max, state.sum * exp2_prob(state.max, max)};
    const float anchor = math::anchor(state.max);
    state.sum += (exp2_prob(four.x, anchor) + exp2_prob(four.y, anchor)) +
                 (exp2_prob(four.z, anchor) + exp2_prob(four.w, anchor));
  }
  const float max = reduce<true>(state.max, warps);
  const float factor = exp2_prob(state.max, math::anchor(max));
  return {max, reduce<false>(factor * state.sum, warps)};
}

__device__ void write_probs(const Parameters& parameters, const Row& row, float anchor,
                            float scale) {
  const Problem& problem = parameters.tiles.problem;
  const float* const scores = parameters.scores + row.number * parameters.score_stride;
  std::uint16_t* const row_probs = parameters.probs + row.number * parameters.score_stride;
  const math::DropoutRule rule =
      math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset);
  const std::int64_t head_index = row.sequence.batch * problem.heads + row.head;
  if (problem.dropout_p > 0) scale *= static_cast<float>(rule.keep_scale);
  const std::int32_t step = 4 * static_cast<std::int32_t>(blockDim.x);
  for (std::int32_t c = 4 * threadIdx.x; c < row.columns; c += step) {
    const float4 four = *reinterpret_cast<const float4*>(scores + c);
    float probs[4] = {exp2_prob(four.x, anchor), exp2_prob(four.y, anchor),
                      exp2_prob(four.z, anchor), exp2_prob(four.w, anchor)};
    for (float& prob : probs) prob *= scale;
    if (problem.dropout_p > 0) {
      const math::Philox4 words = math::dropout_words(rule, head_index, row.row, c / 4);
      for (int i = 0; i < 4; ++i) {
        if (words.word[i] < rule.threshold) probs[i] = 0;
      }
    }
    const bool fp16 = problem.dtype == TILEWISE_FP16;
    std::uint32_t pairs[2];
    for (int i = 0; i < 2; ++i) {
      pairs[i] = fp16 ? ptx::pack<true>(probs[2 * i], probs[2 * i + 1])
                      : ptx::pack<false>(probs[2 * i], probs[2 * i + 1]);
    }
    *reinterpret_cast<uint2*>(row_probs + c) = make_uint2(pairs[0], pairs[1]);
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    softmax_kernel(const __grid_constant__ Parameters parameters, std::int32_t rows,
                   std::int32_t k_tile) {
  __shared__ float warps[kMaxThreads / 32];
  const Problem& problem = parameters.tiles.problem;
  const std::int32_t q_rows = static_cast<std::int32_t>(problem.q_rows);
  const std::int32_t heads = static_cast<std::int32_t>(problem.heads);
  for (std::int64_t number = blockIdx.x; number < rows; number += gridDim.x) {
    const std::int32_t head_index = static_cast<std::int32_t>(number) / q_rows;  // (batch, head)
    const std::int32_t q_row = static_cast<std::int32_t>(number) % q_rows;
    const std::int32_t head = head_index % heads;
    const std::int32_t batch = head_index / heads;
    const Sequence sequence = problem.q_packed
                                  ? owner_of(problem, parameters.tiles.table, q_row)
                                  : sequence_at(problem, parameters.tiles.table, batch);
    if (!owns(sequence, q_row)) continue;
    const std::int32_t tiles = math::ceil_div(static_cast<std::int32_t>(sequence.k_len), k_tile);
    const Row row = {sequence, head, q_row - sequence.q_start, number, tiles * k_tile};
    const math::SoftmaxState<float> state =
        state_of(parameters.scores + number * parameters.score_stride, row.columns, warps);
    float sink = -math::Limits<float>::kInfinity;
    if (problem.sink.present())
      sink = static_cast<const float*>(problem.sink.data)[problem.sink.offset(0, head, 0)];
    const math::Finalised<float> finalised = math::finalise(state, sink);
    write_probs(parameters, row, math::anchor(state.max), finalised.scale);
    if (threadIdx.x != 0 || !problem.lse.present()) continue;
    static_cast<float*>(problem.lse.data)[problem.lse.offset(batch, head, q_row)] = finalised.lse;
  }
}

}  // namespace

cudaError_t load_softmax() { return load(softmax_kernel); }

cudaError_t start_softmax(const Parameters& parameters, int k_tile, cudaStream_t stream) {
  constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 20;
  const Problem& problem = parameters.tiles.problem;
  const std::int64_t rows = (problem.q_packed ? 1 : problem.batch) * problem.heads * problem.q_rows;
  const int threads = parameters.score_stride <= kShortRow ? kFewThreads : kMaxThreads;
  return launch(softmax_kernel, {math::min(rows, kMaxBlocks), threads}, stream, parameters,
                static_cast<std::int32_t>(rows), k_tile);
}

}  // namespace tilewise::cuda::ladder
