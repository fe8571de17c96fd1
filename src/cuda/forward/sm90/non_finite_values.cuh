// Elements of V that are not finite, in key tiles of which a row does not see everything: a masked
// prob is 0, but 0 * NaN is NaN. In careful passes they count as zero in the product P V; what they
// contribute to the rows that see them is added by two more products (tile/markers.cuh). V lies in
// shared memory once for all consumers, so that they share the work and wait for each other.
#pragma once

#include "cuda/forward/sm90/consumer.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/tile/markers.cuh"
#include "cuda/tile/slow_path.cuh"

namespace tilewise::cuda::sm90 {

// Says whether a row of a query tile does not see a key of a key tile that others may see.
template <KernelConfig kConfig>
__device__ __forceinline__ bool cuts_key_tile(const WorkTile& tile, std::int32_t key) {
  const std::int32_t begin = key * kConfig.k_tile;
  const std::int32_t end = math::min(begin + kConfig.k_tile, tile.band.key_end);
  const std::int32_t last = math::min(tile.row + kConfig.q_tile, tile.q_len) - 1;
  return !tile.band.full(tile.row, last, begin, end);
}

// The same for the key tile that is computed, whose V is `v_key`.
template <KernelConfig kConfig>
__device__ __forceinline__ bool Consumer<kConfig>::cuts_keys(std::int32_t v_key) const {
  return kConfig.block_mask ? bits_ != tile::kFullTile : cuts_key_tile<kConfig>(*tile_, v_key);
}

template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::meet_consumers() {
  ptx::named_barrier_sync(barrier_of(NamedBarrier::kConsumers, 0), 128 * kConfig.consumers());
}

// Before the product with a stage of V in a cut key tile: what is not finite becomes zero, which
// the stage remembers.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::zero_non_finite_v() const {
  const int stage = v_.state().stage;
  uint4* const chunks = reinterpret_cast<uint4*>(shared_.v[stage]);
#pragma unroll 1
  for (int i = static_cast<int>(ptx::opaque(threadIdx.x)) - 128;
       i < kConfig.v_bytes() / tile::kChunkBytes; i += 128 * kConfig.consumers()) {
    uint4 chunk = chunks[i];
    if (!tile::zero_non_finite<kConfig.fp16>(chunk)) continue;
    chunks[i] = chunk;
    shared_.careful.non_finite[stage] = true;
  }
  ptx::fence_proxy_async();
  meet_consumers();
}

// After that product: adds what counted as zero to the rows that see it.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::add_non_finite_v(std::int32_t key,
                                                                    float (&out)[kOut]) const {
  if (!shared_.careful.non_finite[v_.state().stage]) return;
  if (threadIdx.x == 128) tile::count_slow_path(tile::SlowPath::kNonFiniteTile);
#pragma unroll 1
  for (int negative = 0; negative < 2; ++negative) {
    meet_consumers();  // no product reads V any more
    negative != 0 ? store_markers<true>(key) : store_markers<false>(key);
    ptx::fence_proxy_async();
    meet_consumers();
    multiply_markers(key, out);
  }
}

// O += M N. Few registers are left: one step of 16 keys and 64 columns at a time, with rows from a
// thread number that the compiler does not keep.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::multiply_markers(std::int32_t key,
                                                                    float (&out)[kOut]) const {
  constexpr int kPanelBytes = kConfig.k_tile * tile::kPanelRowBytes;
  constexpr int kSums = tile::kPanelColumns / 2;
#pragma unroll 1
  for (int step = 0; step < kPvSteps; ++step) {
    std::uint32_t bits[tile::kRowsPerLane];  // the keys that the lane's rows see
    const int thread = static_cast<int>(ptx::opaque(threadIdx.x)) - 128;
    const int lane = thread % 32;
    if constexpr (kConfig.block_mask) listed_bits(bits);
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane && !kConfig.block_mask; ++which) {
      const std::int32_t row =
          tile_->row + thread / 32 * tile::kWarpRows + tile::lane_row(lane, which);
      const auto low_bits = [&](std::int32_t end) {
        const std::int32_t column = end - key * kConfig.k_tile;
        return tile::low_bits(tile::columns_before(column, tile::lane_column(lane)));
      };
      bits[which] = low_bits(tile_->band.end(row)) & ~low_bits(tile_->band.begin(row));
    }
    std::uint32_t visible[4];
    tile::mark_visible(bits[0], bits[1], step, visible);
    const std::uint32_t v = ptx::shared_address(shared_.v[v_.state().stage]);
#pragma unroll
    for (int panel = 0; panel < kConfig.value_dim / tile::kPanelColumns; ++panel) {
      float sums[kSums];  // rounded before they are added to O
      const std::uint32_t rows = v + panel * kPanelBytes + step * kMmaK * tile::kPanelRowBytes;
      ptx::wgmma_fence();
      ptx::Wgmma<tile::kPanelColumns>::template rs<false>(
          sums, visible, tile::columns_descriptor(rows, kPanelBytes), false);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_operand(sums);
#pragma unroll
      for (int r = 0; r < kSums; ++r) out[panel * kSums + r] += sums[r];
    }
    ptx::fence_operand(visible);
  }
}

// Puts the markers of a key tile in the place of its V, which is read once more.
template <KernelConfig kConfig>
template <bool kNegative>
__device__ __forceinline__ void Consumer<kConfig>::store_markers(std::int32_t key) const {
  constexpr int kRowChunks = tile::kPanelRowBytes / tile::kChunkBytes;
  const problem::View& view = parameters_.problem.v;
  const std::int32_t first = key * kConfig.k_tile;
  const std::int32_t rows = tile_->band.key_end - first;
  const auto* const from = static_cast<const std::uint16_t*>(view.data) +
                           view.offset(parameters_.problem.k_packed ? 0 : tile_->batch,
                                       tile_->kv_head, std::int64_t{tile_->k_start} + first);
  unsigned char* const v = shared_.v[v_.state().stage];
#pragma unroll 1
  for (int i = static_cast<int>(ptx::opaque(threadIdx.x)) - 128;
       i < kConfig.v_bytes() / tile::kChunkBytes; i += 128 * kConfig.consumers()) {
    const int panel = i / (kConfig.k_tile * kRowChunks);
    const int row = i / kRowChunks % kConfig.k_tile;
    const int column = panel * tile::kPanelColumns + i % kRowChunks * 8;
    uint4 chunk = make_uint4(0, 0, 0, 0);
    if (row < rows && column < parameters_.problem.value_dim) {
      const uint4 values = *reinterpret_cast<const uint4*>(from + row * view.row + column);
      chunk = make_uint4(tile::markers_of<kConfig.fp16, kNegative>(values.x),
                         tile::markers_of<kConfig.fp16, kNegative>(values.y),
                         tile::markers_of<kConfig.fp16, kNegative>(values.z),
                         tile::markers_of<kConfig.fp16, kNegative>(values.w));
    }
    *reinterpret_cast<uint4*>(v + panel * kConfig.k_tile * tile::kPanelRowBytes +
                              tile::swizzled(row, i % kRowChunks * tile::kChunkBytes)) = chunk;
  }
}

}  // namespace tilewise::cuda::sm90
