// The kernel that makes the table of bands of a list of slices.
#include "cuda/host/bands.h"

#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/tile/block_scan.cuh"
#include "math/integer.h"

namespace tilewise::cuda {
namespace {

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
    bands_kernel(const __grid_constant__ Problem problem, const tile::Band* bands,
                 tile::BandCells cells, unsigned* counter) {
  __shared__ std::int64_t warps[kScanWarps];
  const std::int32_t thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t slices = static_cast<std::int32_t>(problem.slices.count);
  const tile::BandTable table(bands, slices);
  if (thread == 0 && counter != nullptr) *counter = 0;
  if (slices == 0) return;
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

cudaError_t load_band_kernel() { return load(bands_kernel); }

cudaError_t start_bands(const Problem& problem, const tile::Band* bands, cudaStream_t stream,
                        unsigned* counter) {
  if (problem.slices.count == 0 && counter == nullptr) return cudaSuccess;
  return launch(bands_kernel, {1, kScanThreads}, stream, problem, bands, band_cells_for(problem),
                counter);
}

}  // namespace tilewise::cuda
