// Merges the results of a part into those of the parts before it.
#include <type_traits>

#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/parts/results.h"
#include "cuda/tile/element.cuh"
#include "math/integer.h"
#include "math/softmax_state.h"

namespace tilewise::cuda::parts {
namespace {

using problem::View;

constexpr int kThreads = 256;
constexpr int kRows = 32;  // that a warp merges at a time: one for each lane's statistics

struct RowPlace {
  std::int64_t batch;
  std::int64_t head;
  std::int64_t row;

  __device__ __forceinline__ std::int64_t in(const View& view) const {
    return view.offset(batch, head, row);
  }
};

// The rows of a tensor (batch, head, row), numbered with the heads of a token next to each other,
// as they mostly lie in memory.
struct Rows {
  std::int64_t heads;
  std::int64_t rows;
  std::int64_t count;
  std::int64_t columns;
  bool wide;  // rows of both tensors take loads of four floats

  __device__ __forceinline__ RowPlace place(std::int64_t index) const {
    const std::int64_t token = index / heads;
    const std::int64_t batch = token / rows;
    return {batch, index - token * heads, token - batch * rows};
  }
};

template <class T>
__device__ __forceinline__ T* element(const View& view, std::int64_t offset) {
  return static_cast<T*>(view.data) + offset;
}

// Merges a row into the sum of those before it: columns of a warp, `Lane` numbers at a time.
template <class Lane, class Combine>
__device__ __forceinline__ void merge_row(const Lane* part, Lane* sum, std::int64_t count,
                                          const Combine& combine) {
  for (std::int64_t c = threadIdx.x % 32; c < count; c += 32) sum[c] = combine(part[c], sum[c]);
}

template <class Combine>
struct FourTimes {
  Combine combine;
  __device__ __forceinline__ float4 operator()(const float4& a, const float4& b) const {
    return make_float4(combine(a.x, b.x), combine(a.y, b.y), combine(a.z, b.z), combine(a.w, b.w));
  }
};

template <class T, class Combine>
__device__ __forceinline__ void merge_row_of(const Rows& rows, const T* part, T* sum,
                                             const Combine& combine) {
  if constexpr (std::is_same_v<T, float>) {
    if (rows.wide) {
      return merge_row(reinterpret_cast<const float4*>(part), reinterpret_cast<float4*>(sum),
                       rows.columns / 4, FourTimes<Combine>{combine});
    }
  }
  merge_row(part, sum, rows.columns, combine);
}

// finalise_into() of math/softmax_state.h, where the part's result stands for its state. A row that
// sees no key of the part is left alone, but an empty one is set to 0.
template <class T>
struct MergedOut {
  T scale, kept;
  bool has_earlier;
  __device__ __forceinline__ T operator()(T part, T earlier) const {
    return has_earlier ? part * scale + earlier * kept : part * scale;
  }
};

// A warp merges the statistics of 32 rows, one in each lane, then row after row of out.
template <class T>
__global__ void __launch_bounds__(kThreads)
    merge_results_kernel(const __grid_constant__ Rows rows, const __grid_constant__ View part_out,
                         const __grid_constant__ View part_lse, const __grid_constant__ View out,
                         const __grid_constant__ View lse) {
  const std::int64_t step = std::int64_t{gridDim.x} * (kThreads / 32) * kRows;
  const std::int64_t warp = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  for (std::int64_t first = warp * kRows; first < rows.count; first += step) {
    const std::int64_t own = first + threadIdx.x % 32;
    const RowPlace place = rows.place(math::min(own, rows.count - 1));
    const std::int64_t from = place.in(part_out);
    const std::int64_t to = place.in(out);
    T* const own_lse = element<T>(lse, place.in(lse));
    const T earlier = *own_lse;
    const T added = *element<T>(part_lse, place.in(part_lse));
    const math::Continued<T> end =
        math::finalise_into(earlier, math::state_of_result(added), -math::Limits<T>::kInfinity);
    const bool changes = !(added == -math::Limits<T>::kInfinity && end.has_earlier);
    __syncwarp();  // the lanes after the last row have read what its lane writes
    if (own < rows.count) *own_lse = end.lse;
    const int count = static_cast<int>(math::min(rows.count - first, std::int64_t{kRows}));
    const unsigned changed = __ballot_sync(~0u, changes);
    const unsigned read = __ballot_sync(~0u, end.has_earlier);
    for (int i = 0; i < count; ++i) {
      const T scale = __shfl_sync(~0u, end.scale, i);
      const T kept = __shfl_sync(~0u, end.kept, i);
      const std::int64_t part_at = __shfl_sync(~0u, from, i);
      const std::int64_t at = __shfl_sync(~0u, to, i);
      if ((changed >> i & 1u) == 0) continue;
      merge_row_of(rows, element<const T>(part_out, part_at), element<T>(out, at),
                   MergedOut<T>{scale, kept, (read >> i & 1u) != 0});
    }
  }
}

// A sum keeps its bits where nothing is added, that of a negative 0 too.
template <class T>
struct Sum {
  __device__ __forceinline__ T operator()(T part, T sum) const {
    return part == T(0) ? sum : sum + part;
  }
};

// A warp adds a row at a time. NOTE: without a number of blocks ptxas takes 32 registers and
// spills.
template <class T>
__global__ void __launch_bounds__(kThreads, 6)
    add_kernel(const __grid_constant__ Rows rows, const __grid_constant__ View part,
               const __grid_constant__ View sum) {
  const std::int64_t step = std::int64_t{gridDim.x} * (kThreads / 32);
  for (std::int64_t row = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
       row < rows.count; row += step) {
    const RowPlace place = rows.place(row);
    merge_row_of(rows, element<const T>(part, place.in(part)), element<T>(sum, place.in(sum)),
                 Sum<T>{});
  }
}

// A thread adds an element at a time, of any strides and types.
__global__ void __launch_bounds__(kThreads)
    add_elements_kernel(const __grid_constant__ Rows rows, const __grid_constant__ View part,
                        const __grid_constant__ View sum) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
       i < rows.count * rows.columns; i += step) {
    const std::int64_t row = i / rows.columns;
    const std::int64_t column = i - row * rows.columns;
    const RowPlace place = rows.place(row);
    const double added = read_element(part, place.in(part) + column * part.column);
    const std::int64_t at = place.in(sum) + column * sum.column;
    if (added != 0) write_element(sum, at, read_element(sum, at) + added);
  }
}

bool has_wide_rows(const View& view) {
  constexpr std::int64_t kFloats = 4;
  return view.dtype == TILEWISE_FP32 && reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 &&
         view.batch % kFloats == 0 && view.head % kFloats == 0 && view.row % kFloats == 0;
}

Rows rows_of(std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t columns,
             const View& part, const View& sum) {
  return {heads, rows, batch * heads * rows, columns,
          columns % 4 == 0 && has_wide_rows(part) && has_wide_rows(sum)};
}

std::int64_t blocks_for(std::int64_t items, std::int64_t per_block) {
  constexpr std::int64_t kMaxBlocks = 1 << 16;
  return math::min(math::ceil_div(items, per_block), kMaxBlocks);
}

cudaError_t merge_forward(const Problem& problem, const Problem& part, cudaStream_t stream) {
  const Rows rows = rows_of(problem.q_packed ? 1 : problem.batch, problem.heads, problem.q_rows,
                            problem.value_dim, part.out, problem.out);
  if (rows.count == 0) return cudaSuccess;
  const Grid grid = {blocks_for(rows.count, kThreads / 32 * kRows), kThreads};
  const auto kernel = problem.statistics == TILEWISE_FP64 ? merge_results_kernel<double>
                                                          : merge_results_kernel<float>;
  return launch(kernel, grid, stream, rows, part.out, part.lse, problem.out, problem.lse);
}

// Adds a gradient with rows.
cudaError_t add_rows(std::int64_t batch, std::int64_t heads, std::int64_t rows,
                     std::int64_t columns, const View& part, const View& sum, cudaStream_t stream) {
  const Rows all = rows_of(batch, heads, rows, columns, part, sum);
  if (!sum.present() || all.count == 0 || columns == 0) return cudaSuccess;
  const auto kernel = sum.dtype == TILEWISE_FP64 ? add_kernel<double> : add_kernel<float>;
  return launch(kernel, {blocks_for(all.count, kThreads / 32), kThreads}, stream, all, part, sum);
}

// Adds a gradient of any strides: of a bias, a sink or slopes.
cudaError_t add_elements(const std::int64_t (&shape)[4], const View& part, const View& sum,
                         cudaStream_t stream) {
  const Rows all = {shape[1], shape[2], shape[0] * shape[1] * shape[2], shape[3], false};
  if (!sum.present() || all.count * all.columns == 0) return cudaSuccess;
  return launch(add_elements_kernel, {blocks_for(all.count * all.columns, kThreads), kThreads},
                stream, all, part, sum);
}

cudaError_t merge_backward(const Problem& problem, const Problem& part, cudaStream_t stream) {
  const std::int64_t q_batch = problem.q_packed ? 1 : problem.batch;
  const std::int64_t k_batch = problem.k_packed ? 1 : problem.batch;
  cudaError_t error = add_rows(q_batch, problem.heads, problem.q_rows, problem.head_dim, part.dq,
                               problem.dq, stream);
  if (error == cudaSuccess)
    error = add_rows(k_batch, problem.kv_heads, problem.k_rows, problem.head_dim, part.dk,
                     problem.dk, stream);
  if (error == cudaSuccess)
    error = add_rows(k_batch, problem.kv_heads, problem.k_rows, problem.value_dim, part.dv,
                     problem.dv, stream);
  if (error == cudaSuccess)
    error = add_elements(problem.bias_shape, part.dbias, problem.dbias, stream);
  if (error == cudaSuccess)
    error = add_elements({1, problem.heads, 1, 1}, part.dsink, problem.dsink, stream);
  if (error != cudaSuccess) return error;
  return add_elements({problem.slopes_per_batch ? problem.batch : 1, problem.heads, 1, 1},
                      part.dalibi_slopes, problem.dalibi_slopes, stream);
}

}  // namespace

cudaError_t load_merge() {
  cudaError_t error = load(merge_results_kernel<float>);
  if (error == cudaSuccess) error = load(merge_results_kernel<double>);
  if (error == cudaSuccess) error = load(add_kernel<float>);
  if (error == cudaSuccess) error = load(add_kernel<double>);
  return error == cudaSuccess ? load(add_elements_kernel) : error;
}

cudaError_t merge(const Problem& problem, const Problem& part, cudaStream_t stream) {
  return problem.operation == problem::Operation::kForward ? merge_forward(problem, part, stream)
                                                           : merge_backward(problem, part, stream);
}

}  // namespace tilewise::cuda::parts
