// The warps that transpose V of fp8, whose product needs keys contiguous (ptx/wgmma_fp8.cuh), while
// the consumers compute. A warp takes 32 of the 128 keys of a tile.
//
// The order of keys. A lane holds columns 2 t, 2 t + 1 of each 8 columns of P (tile/fragment.h, t:
// lane % 4), and needs four adjacent bytes of the left operand. So of each 16 keys, V^T has key 8 g
// + 2 t + e in byte 4 t + 2 g + e. ldmatrix.trans and one prmt for each register make just that
// order.
//
// V that is not finite, in a key tile that an edge cuts: a masked prob is 0, but 0 * NaN is NaN.
// Such numbers become 0, and V^T is followed by stages of markers, which have 1 in their places.
// The consumers multiply these by the keys that a row sees, and add what belongs to the rows
// (consumer.cuh).
#pragma once

#include "cuda/forward/sm90/fp8/fp8_bytes.h"
#include "cuda/forward/sm90/non_finite_values.cuh"
#include "cuda/forward/sm90/shared.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/stmatrix.cuh"

namespace tilewise::cuda::sm90 {

template <KernelConfig kConfig>
class Transposer {
 public:
  // warp: 0 to 3.
  __device__ Transposer(Shared<kConfig>& shared, int warp) : shared_(shared), warp_(warp) {}

  // All key tiles of the block, in the producer's order.
  __device__ __forceinline__ void run() {
    for (std::uint32_t slot = 0;; ++slot) {
      const PipelineState<kTileSlots> published = state_after<kTileSlots>(slot);
      ptx::mbarrier_wait(ptx::shared_address(&shared_.barriers.tile_full[published.stage]),
                         published.phase);
      const WorkTile& tile = shared_.tiles[published.stage];
      if (tile.index < 0) return;
      for (std::int32_t key = tile.end_key - 1; key >= tile.first_key; --key)
        transpose_tile(tile, key);
    }
  }

 private:
  static constexpr int kKeys = 32;  // of the 16 columns that one ldmatrix takes
  static constexpr int kKeyBlocks = kConfig.k_tile / kKeys / kTransposers;  // of a warp
  static constexpr int kColumnBlocks = kConfig.value_dim / tile::kChunkBytes;
  static constexpr int kAtOnce = kConfig.transposer_registers() > 32 ? 4 : 1;  // ldmatrix in flight
  static_assert(kConfig.k_tile == 128, "V^T is one panel.");

  enum class Content { kAll, kFinite, kPositive, kNegative };

  __device__ __forceinline__ void transpose_tile(const WorkTile& tile, std::int32_t key) {
    wait_full(shared_.loaded_v_barriers, loaded_);
    const std::int32_t rows = key == tile.end_key - 1 ? tile.v_rows : kConfig.k_tile;
    if (rows < kConfig.k_tile) zero_rows(rows);
    wait_empty(shared_.barriers.v, v_);
    if (cuts_key_tile<kConfig>(tile, key)) {
      const bool found = any_found(transpose<Content::kFinite>());
      publish(found ? kMarkerStages<kConfig.e5m2> : 0);
      if (found) {
        publish_markers<Content::kPositive>();
        if constexpr (kConfig.e5m2) publish_markers<Content::kNegative>();
      }
    } else {
      transpose<Content::kAll>();
      publish(0);
    }
    __syncwarp();
    release(shared_.loaded_v_barriers.empty[loaded_.stage]);
    loaded_.advance();
  }

  template <Content kContent>
  __device__ __forceinline__ void publish_markers() {
    wait_empty(shared_.barriers.v, v_);
    transpose<kContent>();
    publish(0);
  }

  // markers: stages of them that follow.
  __device__ __forceinline__ void publish(int markers) {
    ptx::fence_proxy_async();
    if (warp_ == 0 && threadIdx.x % 32 == 0) shared_.markers[v_.stage] = markers;
    __syncwarp();
    release(shared_.barriers.v.full[v_.stage]);
    v_.advance();
  }

  // Rows after the sequence's end, which belong to another one, or hold no V at all: this warp's.
  __device__ __forceinline__ void zero_rows(std::int32_t rows) {
    unsigned char* const v = shared_.loaded_v[loaded_.stage];
    constexpr int kRowChunks = tile::kPanelRowBytes / tile::kChunkBytes;
    constexpr int kOwn = kConfig.k_tile / kTransposers * kRowChunks;
#pragma unroll 1
    for (int chunk = warp_ * kOwn + static_cast<int>(threadIdx.x) % 32; chunk < (warp_ + 1) * kOwn;
         chunk += 32) {
      if (chunk / kRowChunks >= rows) reinterpret_cast<uint4*>(v)[chunk] = make_uint4(0, 0, 0, 0);
    }
    ptx::fence_proxy_async();
    __syncwarp();
  }

  // Transposes this warp's keys. kFinite: returns whether V has what is not finite.
  template <Content kContent>
  __device__ __forceinline__ bool transpose() const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = lane % 8;
    // ldmatrix: matrix i has keys 8 i to 8 i + 7.
    const std::uint32_t from = ptx::shared_address(shared_.loaded_v[loaded_.stage]) +
                               (warp_ * kKeyBlocks * kKeys + lane) * tile::kPanelRowBytes;
    // stmatrix: rows of matrices 0 and 1 are columns of V of 16 keys, those of 2 and 3 of the next
    // 16. The lower half of the warp has even columns in matrix 0 and odd ones in 1, the upper half
    // the reverse, so that the 8 rows of a matrix lie in different banks.
    const int column = 2 * row + (lane / 8 % 2 ^ row / 4);
    const std::uint32_t to =
        ptx::shared_address(shared_.v[v_.stage]) +
        tile::swizzled(column, (warp_ * kKeyBlocks * 2 + lane / 16) * tile::kChunkBytes);
    const std::uint32_t selector = lane < 16 ? 0x6420u : 0x7531u;
    std::uint32_t found = 0;
#pragma unroll 1
    for (int block = 0; block < kKeyBlocks * kColumnBlocks; block += kAtOnce) {
      const int keys = block / kColumnBlocks;
      const int first = block % kColumnBlocks;
      std::uint32_t v[kAtOnce][4];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const std::uint32_t chunk = static_cast<std::uint32_t>((first + i) ^ row);
        ptx::ldmatrix_x4_trans(
            v[i], from + keys * kKeys * tile::kPanelRowBytes + chunk * tile::kChunkBytes);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const std::uint32_t other = selector ^ 0x1111u;
        std::uint32_t transposed[4] = {ptx::permute_bytes(v[i][0], v[i][1], selector),
                                       ptx::permute_bytes(v[i][0], v[i][1], other),
                                       ptx::permute_bytes(v[i][2], v[i][3], selector),
                                       ptx::permute_bytes(v[i][2], v[i][3], other)};
        for (std::uint32_t& numbers : transposed) found |= select<kContent>(numbers);
        ptx::stmatrix_x4((to ^ keys * kKeys) + (first + i) * 16 * tile::kPanelRowBytes, transposed);
      }
    }
    return found != 0;
  }

  // Replaces numbers by what is to be stored for them; kFinite: returns not 0 if one is not finite.
  template <Content kContent>
  __device__ __forceinline__ static std::uint32_t select(std::uint32_t& numbers) {
    if constexpr (kContent == Content::kFinite) {
      const std::uint32_t found = non_finite_fp8<kConfig.e5m2>(numbers);
      numbers = finite_fp8<kConfig.e5m2>(numbers);
      return found;
    } else if constexpr (kContent == Content::kPositive) {
      numbers = markers_of_fp8<kConfig.e5m2, false>(numbers);
    } else if constexpr (kContent == Content::kNegative) {
      numbers = markers_of_fp8<kConfig.e5m2, true>(numbers);
    }
    return 0;
  }

  // Whether a lane of any of these warps has found something. They write it to places that they use
  // in turns: no warp is so many tiles ahead that it writes what another has not read yet, since
  // its stages of V^T wait for that one.
  __device__ __forceinline__ bool any_found(bool found) const {
    static_assert(kConfig.v_stages < 2 * kConfig.loaded_v_stages);
    const std::uint32_t turn =
        loaded_.phase * kConfig.loaded_v_stages + static_cast<std::uint32_t>(loaded_.stage);
    bool(&places)[kTransposers] = shared_.found[turn];
    found = __any_sync(~0u, found);
    if (threadIdx.x % 32 == 0) places[warp_] = found;
    __syncwarp();
    ptx::named_barrier_sync(barrier_of(NamedBarrier::kTransposeV, 0), 32 * kTransposers);
    return places[0] || places[1] || places[2] || places[3];
  }

  Shared<kConfig>& shared_;
  int warp_;
  PipelineState<kConfig.loaded_v_stages> loaded_;
  PipelineState<kConfig.v_stages> v_;
};

}  // namespace tilewise::cuda::sm90
