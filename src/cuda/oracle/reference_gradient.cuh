// The gradients of the oracle in double: of a pair of a query and a key, and sums of them over a
// row of queries, a row of keys, or all pairs that share an element of the bias.
#pragma once

#include "cuda/host/sequences.cuh"
#include "cuda/oracle/reference_row.cuh"

namespace tilewise::cuda {

// The prob of a masked pair. It is not 0, so that a masked pair, which no sum may touch, differs
// from a visible one whose prob underflows.
inline constexpr double kMaskedProb = -1;
// A gradient of 0 adds nothing, although its query or key may hold infinity behind a softcap.
inline constexpr double kNoGradient = 0;

// What a backward kernel reads.
struct GradientInputs {
  Problem problem;
  const Sequence* table;  // (B), or nullptr
  const double* deltas;   // (B, H, Sq), packed (H, T)

  __device__ std::int64_t number_of(const Row& row) const {
    const std::int64_t first = (row.batch_of(problem.q_packed) * problem.heads + row.head);
    return first * problem.q_rows + row.sequence.q_start + row.row;
  }
};

struct GradientMemory {
  RowMemory row;
  double probs[kRowThreads];
  double dproducts[kRowThreads];
};

struct PairGradient {
  double prob;      // times its dropout factor; kMaskedProb: masked
  double dscore;    // dS, also that of the bias
  double dproduct;  // dS times the factor of the softcap: of scale * q.k
};

inline constexpr PairGradient kMaskedPair = {kMaskedProb, kNoGradient, kNoGradient};

// The gradient of a key in the range of keys of the row.
__device__ inline PairGradient pair_gradient(const GradientInputs& inputs, const Row& row,
                                             std::int64_t key) {
  const Problem& problem = inputs.problem;
  double derivative = 1;
  const double score = row.score(key, &derivative);
  if (score == -math::Limits<double>::kInfinity) return kMaskedPair;
  const double prob =
      math::probability(score, read_element(problem.lse, row.query_offset(problem.lse)));
  const double dropout = row.dropout_factor(key);
  const double dprob = dropout * dot(problem.dout, row.query_offset(problem.dout), problem.v,
                                     row.key_offset(problem.v, key), problem.value_dim);
  const double dscore = math::score_gradient(prob, dprob, inputs.deltas[inputs.number_of(row)]);
  return {prob * dropout, dscore, dscore == kNoGradient ? kNoGradient : dscore * derivative};
}

// Rows of a tensor, one for each thread of a block, as far as there are `count`.
struct TensorRows {
  const problem::View& view;
  std::int64_t offset;  // of the first one
  std::int64_t count;
  std::int64_t width;
};

// Adds weights (count) times the rows to sums (kRowColumns), which are of the columns first_column
// + thread + kRowThreads * c; kSumKeys rows at a time, in sums of their own. Rows whose weight is
// `skipped` are not read.
__device__ inline void add_rows(const TensorRows& rows, const double* weights, double skipped,
                                std::int64_t first_column, double* sums) {
  const std::int64_t first = first_column + threadIdx.x;
  with_elements(rows.view, [&](const auto* elements) {
    const auto* row = elements + rows.offset + first;
    for (std::int64_t begin = 0; begin < rows.count; begin += kSumKeys) {
      double parts[kRowColumns] = {};
      const std::int64_t end = math::min(begin + kSumKeys, rows.count);
      for (std::int64_t n = begin; n < end; ++n, row += rows.view.row) {
        const double weight = weights[n];
        if (weight == skipped) continue;
#pragma unroll
        for (int c = 0; c < kRowColumns; ++c) {
          if (first + kRowThreads * c < rows.width)
            parts[c] += weight * math::load<double>(row[kRowThreads * c]);
        }
      }
#pragma unroll
      for (int c = 0; c < kRowColumns; ++c) sums[c] += parts[c];
    }
  });
}

// Writes factor * sums to the columns of add_rows() of a row of a gradient.
__device__ inline void write_sums(const problem::View& view, std::int64_t offset,
                                  std::int64_t width, std::int64_t first_column, double factor,
                                  const double* sums) {
  if (!view.present()) return;
  for (int c = 0; c < kRowColumns; ++c) {
    const std::int64_t column = first_column + threadIdx.x + kRowThreads * c;
    if (column < width) write_element(view, offset + column, factor * sums[c]);
  }
}

// dQ = scale * sum of dS K, kRowThreads keys at a time: a thread computes the gradient of one pair,
// then adds to its columns of dQ.
__device__ inline void compute_query_gradient(const GradientInputs& inputs, const Row& row,
                                              std::int64_t first_column, GradientMemory& shared) {
  const Problem& problem = inputs.problem;
  const math::KeyRange keys = row.keys();
  double sums[kRowColumns] = {};
  for (std::int64_t begin = keys.begin; begin < keys.end; begin += kRowThreads) {
    const std::int64_t key = begin + threadIdx.x;
    shared.dproducts[threadIdx.x] =
        key < keys.end ? pair_gradient(inputs, row, key).dproduct : kNoGradient;
    __syncthreads();
    const std::int64_t count = math::min(kRowThreads, keys.end - begin);
    add_rows({problem.k, row.key_offset(problem.k, begin), count, problem.head_dim},
             shared.dproducts, kNoGradient, first_column, sums);
    __syncthreads();
  }
  write_sums(problem.dq, row.query_offset(problem.dq), problem.head_dim, first_column,
             problem.scale, sums);
}

// A row of keys of a kv head.
struct KeyRow {
  const Problem& problem;
  const Sequence& sequence;
  std::int64_t kv_head;
  std::int64_t key;  // in the sequence

  __device__ std::int64_t offset(const problem::View& view) const {
    return view.offset(problem.k_packed ? 0 : sequence.batch, kv_head, sequence.k_start + key);
  }

  // Without slices, the rows of queries that see the key (causal and window).
  __device__ math::KeyRange rows() const {
    if (problem.slices.present()) return {0, sequence.q_len};
    const math::Band band = math::window_band(sequence.q_len, sequence.k_len, sequence.diagonal,
                                              problem.window_left, problem.window_right);
    return math::tile_rows(band, key, key + 1);
  }
};

// Adds what the rows of a query head add to columns of dK (before the scale) and of dV.
//   dkeys, dvalues (kRowColumns)
__device__ inline void add_head(const GradientInputs& inputs, const KeyRow& key_row,
                                std::int64_t head, std::int64_t first_column,
                                GradientMemory& shared, double* dkeys, double* dvalues) {
  const Problem& problem = inputs.problem;
  const math::KeyRange rows = key_row.rows();
  for (std::int64_t begin = rows.begin; begin < rows.end; begin += kRowThreads) {
    const Row row = {problem, key_row.sequence, head, begin + threadIdx.x};
    const PairGradient pair =
        row.row < rows.end ? pair_gradient(inputs, row, key_row.key) : kMaskedPair;
    shared.probs[threadIdx.x] = pair.prob;
    shared.dproducts[threadIdx.x] = pair.dproduct;
    __syncthreads();
    const Row first = {problem, key_row.sequence, head, begin};
    const std::int64_t count = math::min(kRowThreads, rows.end - begin);
    add_rows({problem.q, first.query_offset(problem.q), count, problem.head_dim}, shared.dproducts,
             kNoGradient, first_column, dkeys);
    add_rows({problem.dout, first.query_offset(problem.dout), count, problem.value_dim},
             shared.probs, kMaskedProb, first_column, dvalues);
    __syncthreads();
  }
}

// dK and dV of a row of keys: the heads of its group one after the other.
__device__ inline void compute_key_gradients(const GradientInputs& inputs, const KeyRow& row,
                                             std::int64_t first_column, GradientMemory& shared) {
  const Problem& problem = inputs.problem;
  double dkeys[kRowColumns] = {};
  double dvalues[kRowColumns] = {};
  for (std::int64_t g = 0; g < problem.group; ++g)
    add_head(inputs, row, row.kv_head * problem.group + g, first_column, shared, dkeys, dvalues);
  write_sums(problem.dk, row.offset(problem.dk), problem.head_dim, first_column, problem.scale,
             dkeys);
  write_sums(problem.dv, row.offset(problem.dv), problem.value_dim, first_column, 1, dvalues);
}

}  // namespace tilewise::cuda
