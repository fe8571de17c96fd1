// The kernels that run before the forward kernel: tile numbers of packed batches, bands of slices.
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/host/sequences.cuh"
#include "cuda/sm80/parameters.h"
#include "cuda/tile/block_scan.cuh"
#include "math/integer.h"

namespace tilewise::cuda::sm80 {
namespace {

__global__ void __launch_bounds__(kScanThreads)
    tile_starts_kernel(const __grid_constant__ Parameters parameters, Side side, std::int32_t tile,
                       std::int32_t* tile_starts /* (B + 1) */) {
  __shared__ std::int64_t warps[kScanWarps];
  const Problem& problem = parameters.problem;
  std::int64_t carry = 0;
  for (std::int64_t first = 0; first < problem.batch; first += kScanThreads) {
    const std::int64_t b = first + threadIdx.x;
    const bool inside = b < problem.batch;
    std::int64_t rows = 0;
    if (inside) {
      const Sequence sequence = sequence_at(problem, parameters.table, b);
      rows = side == Side::kQueries ? sequence.q_len : sequence.k_len;
    }
    const std::int64_t end = block_scan(math::ceil_div(rows, tile), warps, carry,
                                        [](std::int64_t a, std::int64_t c) { return a + c; });
    if (inside) tile_starts[b + 1] = static_cast<std::int32_t>(end);
  }
  if (threadIdx.x == 0) tile_starts[0] = 0;
}

// Slice s as a band.
__device__ tile::Band band_of_slice(const Problem& problem, std::int64_t s) {
  std::int64_t slice[5];
  for (int c = 0; c < 5; ++c) slice[c] = problem.slices.at(s, c);
  // With a head that does not exist it has no rows.
  const std::int64_t head = problem.slices.columns == 6 ? problem.slices.at(s, 5) : -1;
  const bool exists = head >= -1 && head < problem.heads;
  if (!exists) slice[1] = slice[0];
  return tile::narrow_band(math::slice_band(slice, problem.q_rows, problem.k_rows, problem.k_rows),
                           exists ? head : -1);
}

// The smallest box that contains both.
__device__ tile::BandBox hull(const tile::BandBox& a, const tile::BandBox& b) {
  const auto both = [](const tile::Range& x, const tile::Range& y) {
    return tile::Range{math::min(x.begin, y.begin), math::max(x.end, y.end)};
  };
  return {both(a.rows, b.rows), both(a.keys, b.keys), both(a.heads, b.heads)};
}
__device__ tile::BandBox no_box() {
  constexpr tile::Range kNothing = {INT32_MAX, INT32_MIN};
  return {kNothing, kNothing, kNothing};
}

// Sorts the bands by their cells, by counting, and fills in their boxes. Within a cell the order
// may differ from run to run; nothing depends on it.
__global__ void __launch_bounds__(kScanThreads)
    bands_kernel(const __grid_constant__ Parameters parameters, tile::BandCells cells) {
  __shared__ std::int64_t warps[kScanWarps];
  const Problem& problem = parameters.problem;
  const std::int32_t thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t slices = static_cast<std::int32_t>(problem.slices.count);
  const tile::BandTable table(parameters.bands, slices);
  for (std::int32_t c = thread; c < cells.count; c += kScanThreads) table.cell_ends[c] = 0;
  __syncthreads();
  for (std::int32_t s = thread; s < slices; s += kScanThreads)
    atomicAdd(&table.cell_ends[cells.cell_of(band_of_slice(problem, s))], 1u);
  __syncthreads();
  std::int64_t carry = 0;
  for (std::int32_t first = 0; first < cells.count; first += kScanThreads) {
    const std::int32_t c = first + thread;
    const std::int64_t own = c < cells.count ? table.cell_ends[c] : 0;
    const std::int64_t end =
        block_scan(own, warps, carry, [](std::int64_t a, std::int64_t b) { return a + b; });
    if (c < cells.count) table.cell_ends[c] = static_cast<unsigned>(end - own);
  }
  __syncthreads();
  for (std::int32_t s = thread; s < slices; s += kScanThreads) {
    const tile::Band band = band_of_slice(problem, s);
    table.bands[atomicAdd(&table.cell_ends[cells.cell_of(band)], 1u)] = band;
  }
  __syncthreads();
  const std::int32_t boxes = math::ceil_div(slices, tile::kBandsOfBox);
  for (std::int32_t b = thread; b < boxes; b += kScanThreads) {
    tile::BandBox box = no_box();
    const std::int32_t end = math::min((b + 1) * tile::kBandsOfBox, slices);
    for (std::int32_t i = b * tile::kBandsOfBox; i < end; ++i) {
      const tile::Band& band = table.bands[i];
      const tile::Range keys = tile::keys_of(band, band.row_begin, band.row_end - 1);
      if (keys.begin >= keys.end) continue;
      box = hull(box, {{band.row_begin, band.row_end}, keys, {band.head, band.head + 1}});
    }
    table.boxes[b] = box;
  }
  __syncthreads();
  const std::int32_t outer = math::ceil_div(boxes, tile::kBoxesOfBox);
  for (std::int32_t b = thread; b < outer; b += kScanThreads) {
    tile::BandBox box = no_box();
    const std::int32_t end = math::min((b + 1) * tile::kBoxesOfBox, boxes);
    for (std::int32_t i = b * tile::kBoxesOfBox; i < end; ++i) box = hull(box, table.boxes[i]);
    table.outer[b] = box;
  }
}

}  // namespace

cudaError_t load_common_kernels() {
  cudaError_t error = load_sequence_kernels();
  if (error == cudaSuccess) error = load(tile_starts_kernel);
  return error == cudaSuccess ? load(bands_kernel) : error;
}

cudaError_t start_tile_starts(const Parameters& parameters, Side side, int tile,
                              const std::int32_t* tile_starts, cudaStream_t stream) {
  return launch(tile_starts_kernel, {1, kScanThreads}, stream, parameters, side, tile,
                const_cast<std::int32_t*>(tile_starts));
}

cudaError_t start_bands(const Parameters& parameters, const tile::BandCells& cells,
                        cudaStream_t stream) {
  if (parameters.problem.slices.count == 0) return cudaSuccess;
  return launch(bands_kernel, {1, kScanThreads}, stream, parameters, cells);
}

}  // namespace tilewise::cuda::sm80
