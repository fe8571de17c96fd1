// The ring of tiles of K and V of a group of warps: cp.async fills it several tiles ahead. Tile
// number 2 n is K of the group's n-th tile of keys, 2 n + 1 is V.
#pragma once

#include "cuda/decode/shared.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/tile/ldmatrix_tile.h"

namespace tilewise::cuda::decode {

template <KernelConfig kConfig>
class KeyRing {
 public:
  using Layout = tile::LdmatrixTile<kConfig.columns>;
  static constexpr int kRowThreads = kConfig.columns / 8;  // a thread copies 16 bytes at a time
  static constexpr int kStep = kConfig.group_threads() / kRowThreads;  // rows
  static_assert(kConfig.keys % kStep == 0, "Every thread copies the same number of chunks.");

  // The rows of one head.
  struct Source {
    const std::uint16_t* first;  // key 0 of the sequence
    std::int64_t stride;
    std::int32_t columns;
  };

  __device__ KeyRing(Shared<kConfig>& shared)
      : first_(ptx::shared_address(shared.ring[group()])), chunk_(first_ + own_offset()) {}

  __device__ __forceinline__ static int group() {
    return static_cast<int>(threadIdx.x) / kConfig.group_threads();
  }
  __device__ __forceinline__ static int thread() {
    return static_cast<int>(threadIdx.x) % kConfig.group_threads();
  }

  // Starts with the first tiles. `keys`: what some row sees; other keys count as zeros and are not
  // read. `key`: the first of the group's first tile.
  __device__ __forceinline__ void start(const Source& k, const Source& v, const tile::Range& keys,
                                        std::int32_t key, std::int32_t tiles) {
    const int row = thread() / kRowThreads;
    const int column = thread() % kRowThreads * 8;
    keys_ = keys;
    k_ = {k.first + column, k.stride};
    v_ = {v.first + column, v.stride};
    k_inside_ = column < k.columns;
    v_inside_ = column < v.columns;
    next_key_ = key + row;
    left_ = 2 * tiles;
    next_slot_ = 0;
    slot_ = kConfig.slots - 1;
#pragma unroll
    for (int i = 0; i < kConfig.slots - 1; ++i) fetch(i % 2 == 0);
  }

  // Waits for the next tile, and starts another one. Returns the address of the tile.
  template <bool kIsK>
  __device__ __forceinline__ std::uint32_t next() {
    ptx::cp_async_wait<kConfig.slots - 2>();
    sync_group();  // all copies have landed, and no warp reads the tile before any more
    // The tile that is started is slots - 1 tiles ahead.
    fetch(kIsK == ((kConfig.slots - 1) % 2 == 0));
    slot_ = slot_ + 1 == kConfig.slots ? 0 : slot_ + 1;
    return first_ + slot_ * kConfig.tile_bytes();
  }

  // Waits for the end of all copies.
  __device__ __forceinline__ static void finish() {
    ptx::cp_async_wait<0>();
    sync_group();
  }

  __device__ __forceinline__ static void sync_group() {
    if constexpr (kConfig.row_warps == 1) {
      __syncwarp();
    } else {
      static_assert(kConfig.groups() == 1);
      __syncthreads();
    }
  }
  // sync_group() that returns whether any thread of the group says so.
  __device__ __forceinline__ static bool any_of_group(bool own) {
    if constexpr (kConfig.row_warps == 1) return __any_sync(~0u, own);
    return __syncthreads_or(own);
  }

 private:
  struct Place {
    const std::uint16_t* from;
    std::int64_t stride;
  };

  __device__ __forceinline__ static std::int32_t own_offset() {
    return Layout::place(thread() / kRowThreads, thread() % kRowThreads);
  }

  // Starts the copy of the next tile, which is K or V, if there is one.
  __device__ __forceinline__ void fetch(bool is_k) {
    if (left_ > 0) {
      const std::int64_t stride = is_k ? k_.stride : v_.stride;
      const bool inside = is_k ? k_inside_ : v_inside_;
      const std::uint16_t* from = (is_k ? k_.from : v_.from) + next_key_ * stride;
      const std::uint32_t to = chunk_ + next_slot_ * kConfig.tile_bytes();
#pragma unroll
      for (int i = 0; i < kConfig.keys / kStep; ++i, from += kStep * stride) {
        const std::int32_t key = next_key_ + i * kStep;
        const bool visible = inside && key >= keys_.begin && key < keys_.end;
        // Bits of the row that the step does not touch are in the thread's own offset.
        constexpr int kSwizzled = 8;
        const std::uint32_t place = (to ^ static_cast<std::uint32_t>(i * kStep % kSwizzled * 16)) +
                                    i * kStep * Layout::kRowBytes;
        ptx::cp_async_16(place, from, visible);
      }
      --left_;
      if (!is_k) next_key_ += kConfig.block_keys();
      next_slot_ = next_slot_ + 1 == kConfig.slots ? 0 : next_slot_ + 1;
    }
    ptx::cp_async_commit();
  }

  std::uint32_t first_;  // address of the ring
  std::uint32_t chunk_;  // of the thread's first chunk in it
  Place k_, v_;
  tile::Range keys_;
  bool k_inside_, v_inside_;
  std::int32_t next_key_;  // the thread's first key of the next tile that is started
  std::int32_t left_;      // tiles that are not started yet
  std::int32_t next_slot_;
  std::int32_t slot_;
};

}  // namespace tilewise::cuda::decode
