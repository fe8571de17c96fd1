// P = exp(S - LSE) and dS = P * (dP - delta). A block computes a row.
#include "cuda/backward/query_tiles.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/host/sequences.cuh"
#include "cuda/ladder/backward_parameters.h"
#include "cuda/ptx/arithmetic.cuh"
#include "math/integer.h"
#include "math/philox.h"
#include "math/score_rule.h"

namespace tilewise::cuda::ladder {
namespace {

constexpr int kThreads = 128;

// A row of a head of a sequence, and its statistics.
struct Row {
  Sequence sequence;
  std::int32_t head;
  std::int32_t row;  // of the sequence
  float lse_log2;    // LSE * log2(e)
  float delta;
};

__device__ __forceinline__ Row row_of(const backward::Parameters& tiles, const Sequence& sequence,
                                      std::int32_t head, std::int32_t row) {
  const int q_tile = tiles.shape.q_tile;
  const std::int64_t number =
      backward::first_query_tile(tiles, static_cast<std::int32_t>(sequence.batch), head) +
      row / q_tile;
  const float* const statistics = tiles.statistics + number * 2 * q_tile + row % q_tile;
  return {sequence, head, row, statistics[0], statistics[q_tile]};
}

// The factors that dropout applies to the probs of 4 keys from `key` on.
__device__ __forceinline__ float4 keep_factors(const Problem& problem, const Row& row,
                                               std::int32_t key) {
  if (problem.dropout_p == 0) return make_float4(1, 1, 1, 1);
  const math::DropoutRule rule =
      math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset);
  const math::Philox4 words =
      math::dropout_words(rule, row.sequence.batch * problem.heads + row.head, row.row, key / 4);
  const auto factor = [&](std::uint32_t word) {
    return word < rule.threshold ? 0.0f : static_cast<float>(rule.keep_scale);
  };
  return make_float4(factor(words.word[0]), factor(words.word[1]), factor(words.word[2]),
                     factor(words.word[3]));
}

// A pair of a query and a key: what becomes of its score.
struct Pair {
  float prob;    // after dropout
  float dscore;  // dS, of the product Q K^T without the scale
};

// P is at most 1: at large scores the rounding of LSE would make it infinite. NaN stays NaN. A
// masked pair has P = 0 and dS = 0, whatever its dP is.
__device__ __forceinline__ Pair pair_of(const Row& row, float score, float dprob, float keep) {
  if (score == -math::Limits<float>::kInfinity) return {0, 0};
  const float exponent = __fmaf_rn(score, static_cast<float>(math::kLog2E), -row.lse_log2);
  const float prob = ptx::exp2_approx(ptx::min_nan(exponent, 0));
  const float kept_dprob = keep == 0 ? 0 : dprob * keep;
  return {prob * keep, math::score_gradient(prob, kept_dprob, row.delta)};
}

__device__ __forceinline__ void store_four(const Problem& problem, const float (&values)[4],
                                           std::uint16_t* to) {
  const auto pack = [&](float low, float high) {
    return problem.dtype == TILEWISE_FP16 ? ptx::pack<true>(low, high)
                                          : ptx::pack<false>(low, high);
  };
  *reinterpret_cast<uint2*>(to) =
      make_uint2(pack(values[0], values[1]), pack(values[2], values[3]));
}

// Computes P and dS of 4 keys from `key` on. at: of the keys in the matrices
__device__ __forceinline__ void compute_four(const GradientParameters& parameters, const Row& row,
                                             std::int32_t key, std::int64_t at) {
  const Problem& problem = parameters.tiles.problem;
  const tile::ScoreScaling& scaling = parameters.tiles.scaling;
  const float4 scores = *reinterpret_cast<const float4*>(parameters.scores + at);
  const float4 dprobs = *reinterpret_cast<const float4*>(parameters.dprobs + at);
  const float4 keep = keep_factors(problem, row, key);
  const Pair pairs[4] = {
      pair_of(row, scores.x, dprobs.x, keep.x), pair_of(row, scores.y, dprobs.y, keep.y),
      pair_of(row, scores.z, dprobs.z, keep.z), pair_of(row, scores.w, dprobs.w, keep.w)};
  const float probs[4] = {pairs[0].prob, pairs[1].prob, pairs[2].prob, pairs[3].prob};
  float dscores[4] = {pairs[0].dscore, pairs[1].dscore, pairs[2].dscore, pairs[3].dscore};
  if (scaling.cap > 0) {  // from the products: a saturated score has lost the information
    const float4 four = *reinterpret_cast<const float4*>(parameters.products + at);
    const float products[4] = {four.x, four.y, four.z, four.w};
    for (int i = 0; i < 4; ++i) {
      if (dscores[i] != 0)  // else the pair may be masked
        dscores[i] *= math::softcap_derivative(products[i] * scaling.scale, scaling.cap);
    }
  }
  store_four(problem, probs, parameters.probs + at);
  store_four(problem, dscores, parameters.dscores + at);
}

__global__ void __launch_bounds__(kThreads)
    score_gradients_kernel(const __grid_constant__ GradientParameters parameters, std::int32_t rows,
                           std::int32_t k_tile) {
  const Problem& problem = parameters.tiles.problem;
  const std::int32_t q_rows = static_cast<std::int32_t>(problem.q_rows);
  const std::int32_t heads = static_cast<std::int32_t>(problem.heads);
  for (std::int64_t number = blockIdx.x; number < rows; number += gridDim.x) {
    const std::int32_t head_index = static_cast<std::int32_t>(number) / q_rows;  // (batch, head)
    const std::int32_t q_row = static_cast<std::int32_t>(number) % q_rows;
    const Sequence sequence =
        sequence_of_query(problem, parameters.tiles.table, head_index / heads, q_row);
    if (!owns(sequence, q_row)) continue;
    const Row row = row_of(parameters.tiles, sequence, head_index % heads,
                           q_row - static_cast<std::int32_t>(sequence.q_start));
    const std::int32_t columns = math::round_up(static_cast<std::int32_t>(sequence.k_len), k_tile);
    for (std::int32_t key = 4 * threadIdx.x; key < columns; key += 4 * kThreads)
      compute_four(parameters, row, key, number * parameters.score_stride + key);
  }
}

}  // namespace

cudaError_t load_score_gradients() { return load(score_gradients_kernel); }

cudaError_t start_score_gradients(const GradientParameters& parameters, int k_tile,
                                  cudaStream_t stream) {
  constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 20;
  const Problem& problem = parameters.tiles.problem;
  const std::int64_t rows = (problem.q_packed ? 1 : problem.batch) * problem.heads * problem.q_rows;
  if (rows == 0) return cudaSuccess;
  return launch(score_gradients_kernel, {math::min(rows, kMaxBlocks), kThreads}, stream, parameters,
                static_cast<std::int32_t>(rows), k_tile);
}

}  // namespace tilewise::cuda::ladder
