#include "cuda/oracle/reference_gradient.cuh"

#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/oracle/reference.cuh"
#include "math/integer.h"

namespace tilewise::cuda {
namespace {

constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 20;

std::int64_t query_rows(const Problem& problem) {
  return (problem.q_packed ? 1 : problem.batch) * problem.heads * problem.q_rows;
}
std::int64_t key_rows(const Problem& problem) {
  return (problem.k_packed ? 1 : problem.batch) * problem.kv_heads * problem.k_rows;
}

// delta = rowsum(O * dO) - dLSE, a thread for each row. The elements are added in the order in
// which dot() adds those of dP. For a sequence of one key, where O = V, dP - delta is therefore
// exactly 0.
__global__ void __launch_bounds__(kRowThreads, 1)
    delta_kernel(const __grid_constant__ Problem problem, double* deltas, std::int64_t rows) {
  const std::int64_t threads = std::int64_t{gridDim.x} * kRowThreads;
  for (std::int64_t index = std::int64_t{blockIdx.x} * kRowThreads + threadIdx.x; index < rows;
       index += threads) {
    const std::int64_t row = index % problem.q_rows;
    const std::int64_t head = index / problem.q_rows % problem.heads;
    const std::int64_t b = index / problem.q_rows / problem.heads;
    const std::int64_t out = problem.out.offset(b, head, row);
    const std::int64_t dout = problem.dout.offset(b, head, row);
    double sum = 0;
    for (std::int64_t c = 0; c < problem.value_dim; ++c)
      sum += read_element(problem.dout, dout + c) * read_element(problem.out, out + c);
    if (problem.dlse.present())
      sum -= read_element(problem.dlse, problem.dlse.offset(b, head, row));
    deltas[index] = sum;
  }
}

// A block computes every gridDim.x-th row of dQ: (token or row, head, batch).
__global__ void __launch_bounds__(kRowThreads, 1)
    query_gradient_kernel(const __grid_constant__ GradientInputs inputs, std::int64_t rows) {
  __shared__ GradientMemory shared;
  const Problem& problem = inputs.problem;
  for (std::int64_t index = blockIdx.x; index < rows; index += gridDim.x) {
    const std::int64_t q_row = index % problem.q_rows;
    const std::int64_t head = index / problem.q_rows % problem.heads;
    const std::int64_t b = index / problem.q_rows / problem.heads;
    const Sequence sequence = sequence_of_query(problem, inputs.table, b, q_row);
    if (!owns(sequence, q_row)) continue;
    const Row row = {problem, sequence, head, q_row - sequence.q_start};
    for (std::int64_t c = 0; c < problem.head_dim; c += kRowThreads * kRowColumns)
      compute_query_gradient(inputs, row, c, shared);
  }
}

// A block computes every gridDim.x-th row of dK and dV: (token or row, kv head, batch).
__global__ void __launch_bounds__(kRowThreads, 1)
    key_gradient_kernel(const __grid_constant__ GradientInputs inputs, std::int64_t rows) {
  __shared__ GradientMemory shared;
  const Problem& problem = inputs.problem;
  const std::int64_t width = math::max(problem.head_dim, problem.value_dim);
  for (std::int64_t index = blockIdx.x; index < rows; index += gridDim.x) {
    const std::int64_t k_row = index % problem.k_rows;
    const std::int64_t kv_head = index / problem.k_rows % problem.kv_heads;
    const std::int64_t b = index / problem.k_rows / problem.kv_heads;
    const Sequence sequence = sequence_of_key(problem, inputs.table, b, k_row);
    if (!owns_key(sequence, k_row)) continue;
    const KeyRow row = {problem, sequence, kv_head, k_row - sequence.k_start};
    for (std::int64_t c = 0; c < width; c += kRowThreads * kRowColumns)
      compute_key_gradients(inputs, row, c, shared);
  }
}

__device__ math::KeyRange summed(std::int64_t extent, std::int64_t index, std::int64_t full) {
  return extent == 1 ? math::KeyRange{0, full} : math::KeyRange{index, index + 1};
}

// The sum of dS over a thread's keys of some rows of a head.
__device__ double sum_rows(const GradientInputs& inputs, const Row& first, std::int64_t end,
                           math::KeyRange keys) {
  double sum = 0;
  for (std::int64_t r = first.row; r < end; ++r) {
    const Row row = {first.problem, first.sequence, first.head, r};
    const math::KeyRange seen = row.keys();
    for (std::int64_t key = keys.begin; key < keys.end; key += kRowThreads) {
      if (key < seen.begin || key >= seen.end) continue;
      sum += pair_gradient(inputs, row, key).dscore;
    }
  }
  return sum;
}

// A block computes kRowThreads columns of a row of dBias, a thread for each, or the one column of a
// bias that is broadcast over the keys. It adds up everything that the row is broadcast over.
__global__ void __launch_bounds__(kRowThreads, 1)
    bias_gradient_kernel(const __grid_constant__ GradientInputs inputs, std::int64_t tiles) {
  __shared__ RowMemory shared;
  const Problem& problem = inputs.problem;
  const std::int64_t* const shape = problem.bias_shape;
  const std::int64_t row_tiles = math::ceil_div(shape[3], kRowThreads);
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::int64_t column = tile % row_tiles * kRowThreads + threadIdx.x;
    const std::int64_t row = tile / row_tiles % shape[2];
    const std::int64_t head = tile / row_tiles / shape[2] % shape[1];
    const std::int64_t batch = tile / row_tiles / shape[2] / shape[1];
    const math::KeyRange batches = summed(shape[0], batch, problem.batch);
    const math::KeyRange heads = summed(shape[1], head, problem.heads);
    const math::KeyRange rows = summed(shape[2], row, problem.max_q);
    double sum = 0;
    for (std::int64_t b = batches.begin; b < batches.end; ++b) {
      const Sequence sequence = sequence_at(problem, inputs.table, b);
      const std::int64_t end = shape[3] == 1 ? sequence.k_len : column + 1;
      for (std::int64_t h = heads.begin; h < heads.end; ++h) {
        sum += sum_rows(inputs, {problem, sequence, h, rows.begin},
                        math::min(rows.end, sequence.q_len), {column, end});
      }
    }
    if (shape[3] == 1) sum = reduce<false>(sum, BlockTeam{shared});
    if (column < shape[3])
      write_element(problem.dbias, problem.dbias.offset(batch, head, row, column), sum);
  }
}

// dSink = -sum of exp(sink - lse) * delta over the rows of all batches. A block computes a head.
__global__ void __launch_bounds__(kRowThreads, 1)
    sink_gradient_kernel(const __grid_constant__ GradientInputs inputs, std::int64_t rows) {
  __shared__ RowMemory shared;
  const Problem& problem = inputs.problem;
  for (std::int64_t head = blockIdx.x; head < problem.heads; head += gridDim.x) {
    const double sink = read_element(problem.sink, problem.sink.offset(0, head, 0));
    double sum = 0;
    for (std::int64_t index = threadIdx.x; index < rows; index += kRowThreads) {
      const std::int64_t q_row = index % problem.q_rows;
      const std::int64_t b = index / problem.q_rows;
      const Sequence sequence = sequence_of_query(problem, inputs.table, b, q_row);
      if (!owns(sequence, q_row)) continue;
      const double lse = read_element(problem.lse, problem.lse.offset(b, head, q_row));
      const double delta = inputs.deltas[(b * problem.heads + head) * problem.q_rows + q_row];
      sum += math::score_gradient(math::probability(sink, lse), 0.0, delta);
    }
    sum = reduce<false>(sum, BlockTeam{shared});
    if (threadIdx.x == 0) write_element(problem.dsink, problem.dsink.offset(0, head, 0), sum);
  }
}

// The gradient of a slope: the sum of dS times the derivative of the ALiBi term. A block computes
// one of (B, H), or of (H) for all batches.
__global__ void __launch_bounds__(kRowThreads, 1)
    slope_gradient_kernel(const __grid_constant__ GradientInputs inputs, std::int64_t slopes) {
  __shared__ RowMemory shared;
  const Problem& problem = inputs.problem;
  for (std::int64_t index = blockIdx.x; index < slopes; index += gridDim.x) {
    const std::int64_t head = index % problem.heads;
    const std::int64_t own = index / problem.heads;
    const math::KeyRange batches =
        problem.slopes_per_batch ? math::KeyRange{own, own + 1} : math::KeyRange{0, problem.batch};
    double sum = 0;
    for (std::int64_t b = batches.begin; b < batches.end; ++b) {
      const Sequence sequence = sequence_at(problem, inputs.table, b);
      for (std::int64_t r = 0; r < sequence.q_len; ++r) {
        const Row row = {problem, sequence, head, r};
        const math::KeyRange seen = row.keys();
        for (std::int64_t key = seen.begin + threadIdx.x; key < seen.end; key += kRowThreads) {
          const double distance = static_cast<double>(r + sequence.diagonal - key);
          sum += pair_gradient(inputs, row, key).dscore * math::alibi_derivative(distance);
        }
      }
    }
    sum = reduce<false>(sum, BlockTeam{shared});
    if (threadIdx.x == 0)
      write_element(problem.dalibi_slopes, problem.dalibi_slopes.offset(own, head, 0), sum);
  }
}

// Starts a kernel with a block for each of `items`; nothing if there are none.
template <class... Arguments>
cudaError_t start(void (*kernel)(Arguments...), std::int64_t items, cudaStream_t stream,
                  const std::type_identity_t<Arguments>&... arguments) {
  if (items == 0) return cudaSuccess;
  return launch(kernel, {math::min(items, kMaxBlocks), kRowThreads}, stream, arguments...);
}

// dBias, dSink and the gradients of slopes. Without sequences they are 0.
cudaError_t run_shared_gradients(const GradientInputs& inputs, cudaStream_t stream) {
  const Problem& problem = inputs.problem;
  cudaError_t error = cudaSuccess;
  if (problem.dbias.present()) {
    const std::int64_t* const shape = problem.bias_shape;
    const std::int64_t tiles =
        shape[0] * shape[1] * shape[2] * math::ceil_div(shape[3], kRowThreads);
    error = start(bias_gradient_kernel, tiles, stream, inputs, tiles);
  }
  if (error == cudaSuccess && problem.dalibi_slopes.present()) {
    const std::int64_t slopes = (problem.slopes_per_batch ? problem.batch : 1) * problem.heads;
    error = start(slope_gradient_kernel, slopes, stream, inputs, slopes);
  }
  if (error != cudaSuccess || !problem.dsink.present()) return error;
  const std::int64_t rows =
      problem.batch == 0 ? 0 : (problem.q_packed ? 1 : problem.batch) * problem.q_rows;
  return start(sink_gradient_kernel, problem.heads, stream, inputs, rows);
}

}  // namespace

cudaError_t load_reference_gradient() {
  cudaError_t error = load_sequence_kernels();
  if (error == cudaSuccess) error = load(delta_kernel);
  if (error == cudaSuccess) error = load(query_gradient_kernel);
  if (error == cudaSuccess) error = load(key_gradient_kernel);
  if (error == cudaSuccess) error = load(bias_gradient_kernel);
  if (error == cudaSuccess) error = load(slope_gradient_kernel);
  return error == cudaSuccess ? load(sink_gradient_kernel) : error;
}

cudaError_t run_reference_gradient(const Problem& problem, const GradientWorkspace& workspace,
                                   cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  if (workspace.table != nullptr)
    error = fill_table(problem, workspace.table, stream, Diagonals::kExact);
  if (error == cudaSuccess) error = fill_unowned_rows(problem, workspace.table, stream);
  const std::int64_t q_rows = problem.batch == 0 ? 0 : query_rows(problem);
  const std::int64_t k_rows = problem.batch == 0 ? 0 : key_rows(problem);
  const GradientInputs inputs = {problem, workspace.table, workspace.deltas};
  if (error == cudaSuccess)
    error = start(delta_kernel, q_rows, stream, problem, workspace.deltas, q_rows);
  if (error == cudaSuccess && problem.dq.present())
    error = start(query_gradient_kernel, q_rows, stream, inputs, q_rows);
  if (error == cudaSuccess && (problem.dk.present() || problem.dv.present()))
    error = start(key_gradient_kernel, k_rows, stream, inputs, k_rows);
  return error == cudaSuccess ? run_shared_gradients(inputs, stream) : error;
}

}  // namespace tilewise::cuda
