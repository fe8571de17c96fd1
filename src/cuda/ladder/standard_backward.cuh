// The gradients of standard attention (arXiv 2205.14135, Algorithm 3) through global memory.
// standard.cuh stores S = Q K^T and dP = dO V^T, score_gradients.cu computes P = exp(S - LSE) and
// dS = P * (dP - delta), and this file multiplies dV = P^T dO, dK = dS^T Q and dQ = dS K, over all
// queries or keys, visible or not.
#pragma once

#include "cuda/backward/loaded_key_tile.cuh"
#include "cuda/backward/query_gradient.cuh"
#include "cuda/backward/sm80/non_finite_rows.cuh"
#include "cuda/backward/sm80/store_fragments.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/ladder/backward_parameters.h"
#include "cuda/ladder/kernel_table.h"
#include "cuda/sm80/cp_async_tile.cuh"

namespace tilewise::cuda::ladder {

using backward::sm80::LeftOperand;
using backward::sm80::RightOperand;
using backward::sm80::Use;

// The tiles of a product of a matrix, which is P or dS, with rows of dO, Q or K.
template <KernelConfig kConfig, class Tile, int kRows>
struct ProductShared {
  unsigned char matrix[kConfig.q_tile() * kConfig.k_tile * 2];  // (q_tile, k_tile)
  unsigned char rows[kRows * kConfig.columns * 2];
  Tile tile;
  std::uint8_t non_finite[kRows];  // rows with an element that is not finite
};
template <KernelConfig kConfig>
using KeyShared = ProductShared<kConfig, backward::LoadedKeyTile<std::uint16_t>, kConfig.q_tile()>;
template <KernelConfig kConfig>
using QueryShared = ProductShared<kConfig, sm80::WorkTile, kConfig.k_tile>;

// Starts the copy of a tile of a matrix. Its rows are whole tiles of keys.
template <KernelConfig kConfig>
__device__ __forceinline__ void fetch_matrix(const GradientParameters& parameters,
                                             const std::uint16_t* matrix,
                                             const sm80::HeadTile& tile, std::int32_t query,
                                             std::int32_t key, unsigned char* to) {
  const std::int64_t first = parameters.first_row(tile.sequence, tile.head);
  const sm80::Rows rows = {matrix + first * parameters.score_stride + key, parameters.score_stride,
                           static_cast<std::int32_t>(tile.sequence.q_len), kConfig.k_tile, true};
  sm80::load_tile<kConfig.q_tile(), kConfig.k_tile, kConfig.threads()>(rows, query, to);
}

// dV = P^T dO or dK = dS^T Q of a tile of keys, over the queries of all query heads of the group.
template <KernelConfig kConfig>
class KeyGradients {
 public:
  static constexpr int kRowWarps = kConfig.k_tile / 16;
  using Gradient =
      backward::sm80::WarpTile<kConfig.k_tile, kConfig.columns, kConfig.warps, kRowWarps>;
  using NonFinite = backward::sm80::NonFiniteRows<kConfig.columns, kConfig.fp16, kConfig.threads()>;

  __device__ KeyGradients(const GradientParameters& parameters, KeyShared<kConfig>& shared,
                          KeyProduct product)
      : parameters_(parameters),
        shared_(shared),
        tile_(shared.tile),
        of_values_(product == KeyProduct::kValues) {}

  __device__ __forceinline__ void run() {
    const Problem& problem = parameters_.tiles.problem;
    const auto group = static_cast<std::int32_t>(problem.heads > 0 ? problem.group : 0);
    Gradient::clear(sums_);
#pragma unroll 1
    for (std::int32_t i = 0; i < group && tile_.first < tile_.sequence.k_len; ++i) {
      if (threadIdx.x == 0)
        backward::set_query_rows(parameters_.tiles, tile_.kv_head * group + i, tile_);
      __syncthreads();
      const sm80::Rows& rows = of_values_ ? tile_.dout : tile_.q;
#pragma unroll 1
      for (std::int32_t query = 0; query < rows.count; query += kConfig.q_tile())
        add_queries(rows, query);
    }
    store();
  }

 private:
  __device__ __forceinline__ void add_queries(const sm80::Rows& rows, std::int32_t query) {
    using Left = LeftOperand<kConfig.k_tile, Use::kTransposed>;
    using Right = RightOperand<kConfig.columns, Use::kAsStored>;
    const std::uint16_t* const matrix = of_values_ ? parameters_.probs : parameters_.dscores;
    fetch_matrix<kConfig>(parameters_, matrix, tile_, query, tile_.first, shared_.matrix);
    sm80::load_tile<kConfig.q_tile(), kConfig.columns, kConfig.threads()>(rows, query,
                                                                          shared_.rows);
    ptx::cp_async_commit();
    for (int r = threadIdx.x; r < kConfig.q_tile(); r += kConfig.threads())
      shared_.non_finite[r] = 0;
    ptx::cp_async_wait<0>();
    __syncthreads();
    separate_non_finite(rows, query);
    Gradient::template multiply<Left, Right, kConfig.q_tile(), kConfig.fp16, false>(
        shared_.matrix, shared_.rows, {}, sums_);
    __syncthreads();  // no warp reads the tiles any more
  }

  // A masked pair has P = 0 and dS = 0, but 0 * NaN is NaN. Elements that are not finite become
  // zero. A visible one of Q has made dS NaN; what a visible one of dO contributes is added here.
  __device__ __forceinline__ void separate_non_finite(const sm80::Rows& rows, std::int32_t query) {
    const bool found = NonFinite::template zero<kConfig.q_tile()>(shared_.rows, shared_.non_finite);
    if (!__syncthreads_or(found) || !of_values_) return;
#pragma unroll 1
    for (int row = 0; row < kConfig.q_tile(); ++row) {
      if (shared_.non_finite[row] == 0) continue;
      NonFinite::template add_row<Gradient, kConfig.k_tile>(shared_.matrix, row, rows, query + row,
                                                            sums_);
    }
  }

  __device__ __forceinline__ void store() const {
    const Problem& problem = parameters_.tiles.problem;
    const problem::View& view = of_values_ ? problem.dv : problem.dk;
    backward::sm80::store_fragments<Gradient, kConfig.fp16>(
        backward::key_destination(parameters_.tiles, tile_, kConfig.k_tile, view,
                                  of_values_ ? problem.value_dim : problem.head_dim,
                                  of_values_ ? 1 : problem.scale),
        sums_);
  }

  const GradientParameters& parameters_;
  KeyShared<kConfig>& shared_;
  backward::LoadedKeyTile<std::uint16_t>& tile_;
  bool of_values_;
  typename Gradient::Fragments sums_;
};

// dQ = dS K of a tile of queries.
template <KernelConfig kConfig>
__device__ __forceinline__ void multiply_dsk(const GradientParameters& parameters,
                                             const tile::TileCoord& coord,
                                             QueryShared<kConfig>& shared) {
  using Gradient =
      backward::sm80::WarpTile<kConfig.q_tile(), kConfig.columns, kConfig.warps, kConfig.warps>;
  using NonFinite = backward::sm80::NonFiniteRows<kConfig.columns, kConfig.fp16, kConfig.threads()>;
  using Left = LeftOperand<kConfig.k_tile, Use::kAsStored>;
  using Right = RightOperand<kConfig.columns, Use::kAsStored>;
  const sm80::WorkTile& tile = shared.tile;
  typename Gradient::Fragments sums;
  Gradient::clear(sums);
#pragma unroll 1
  for (std::int32_t key = 0; key < tile.sequence.k_len; key += kConfig.k_tile) {
    fetch_matrix<kConfig>(parameters, parameters.dscores, tile, tile.first, key, shared.matrix);
    sm80::load_tile<kConfig.k_tile, kConfig.columns, kConfig.threads()>(tile.k, key, shared.rows);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
    // A visible element that is not finite has made dS NaN.
    NonFinite::template zero<kConfig.k_tile>(shared.rows, shared.non_finite);
    __syncthreads();
    Gradient::template multiply<Left, Right, kConfig.k_tile, kConfig.fp16, false>(
        shared.matrix, shared.rows, {}, sums);
    __syncthreads();  // no warp reads the tiles any more
  }
  backward::sm80::store_fragments<Gradient, kConfig.fp16>(
      backward::dq_destination(parameters.tiles, coord, 0), sums);
}

// A block computes a tile of keys. The row and the type select the configuration.
template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kStandardKernels[kRow].config(kFp16).threads(),
                                  kStandardKernels[kRow].config(kFp16).blocks)
    keys_backward_kernel(const __grid_constant__ GradientParameters parameters,
                         KeyProduct product) {
  constexpr KernelConfig kConfig = kStandardKernels[kRow].config(kFp16);
  auto& shared = *reinterpret_cast<KeyShared<kConfig>*>(dynamic_shared());
  if (!backward::begin_key_tile(parameters.tiles, kConfig.k_tile, shared.tile)) return;
  KeyGradients<kConfig>(parameters, shared, product).run();
}
// A block computes a tile of queries.
template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kStandardKernels[kRow].config(kFp16).threads(),
                                  kStandardKernels[kRow].config(kFp16).blocks)
    queries_backward_kernel(const __grid_constant__ GradientParameters parameters) {
  constexpr KernelConfig kConfig = kStandardKernels[kRow].config(kFp16);
  auto& shared = *reinterpret_cast<QueryShared<kConfig>*>(dynamic_shared());
  const std::int32_t index = static_cast<std::int32_t>(blockIdx.x);
  if (index >= backward::query_tiles(parameters.tiles)) return;
  const tile::TileCoord coord = backward::query_tile_coord(parameters.tiles, index);
  if (threadIdx.x == 0) sm80::set_work_tile(parameters.tiles, coord, kConfig.q_tile(), shared.tile);
  __syncthreads();
  multiply_dsk<kConfig>(parameters, coord, shared);
}

template <int kRow, bool kFp16>
inline constexpr int kKeyBytes = sizeof(KeyShared<kStandardKernels[kRow].config(kFp16)>);
template <int kRow, bool kFp16>
inline constexpr int kQueryBytes = sizeof(QueryShared<kStandardKernels[kRow].config(kFp16)>);

template <int kRow, bool kFp16>
cudaError_t StandardGradientKernel<kRow, kFp16>::load() {
  constexpr int kBytes = kKeyBytes<kRow, kFp16>;
  static_assert(kBytes <= kStandardKernels[kRow].shared_bytes,
                "A row of the table fits the shared memory that it is for.");
  const cudaError_t error = cuda::load(keys_backward_kernel<kRow, kFp16>, kBytes);
  if (error != cudaSuccess) return error;
  return cuda::load(queries_backward_kernel<kRow, kFp16>, kQueryBytes<kRow, kFp16>);
}

template <int kRow, bool kFp16>
cudaError_t StandardGradientKernel<kRow, kFp16>::start_keys(const GradientParameters& parameters,
                                                            KeyProduct product, std::int64_t blocks,
                                                            cudaStream_t stream) {
  constexpr int kThreads = kStandardKernels[kRow].config(kFp16).threads();
  return launch(keys_backward_kernel<kRow, kFp16>, {blocks, kThreads, kKeyBytes<kRow, kFp16>},
                stream, parameters, product);
}

template <int kRow, bool kFp16>
cudaError_t StandardGradientKernel<kRow, kFp16>::start_queries(const GradientParameters& parameters,
                                                               std::int64_t blocks,
                                                               cudaStream_t stream) {
  constexpr int kThreads = kStandardKernels[kRow].config(kFp16).threads();
  return launch(queries_backward_kernel<kRow, kFp16>, {blocks, kThreads, kQueryBytes<kRow, kFp16>},
                stream, parameters);
}

}  // namespace tilewise::cuda::ladder
