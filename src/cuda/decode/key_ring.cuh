// The ring of tiles of K and V of a group of warps: cp.async fills it several tiles ahead. Tile
// number 2 n is K of the group's n-th tile of keys, 2 n + 1 is V.
#pragma once

#include <type_traits>

#include "cuda/decode/shared.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/tile/ldmatrix_tile.h"

namespace tilewise::cuda::decode {

template <KernelConfig kConfig>
class KeyRing {
 public:
  using Layout = tile::LdmatrixTile<kConfig.row_bytes() / 2>;
  using Element = std::conditional_t<kConfig.fp8, std::uint8_t,
                                     std::conditional_t<kConfig.fp32, float, std::uint16_t>>;
  static constexpr int kRowThreads = Layout::kChunks;  // a thread copies 16 bytes at a time
  static constexpr int kStep = kConfig.group_threads() / kRowThreads;  // rows
  static_assert(kConfig.keys % kStep == 0, "Every thread copies the same number of chunks.");
  static_assert(Layout::kGroup == 8 || kStep % 8 == 0, "row_place() knows the swizzle.");

  // Copies whose addresses are in registers at a time: wide rows of out leave room for few.
  static constexpr int kUnrolled = kConfig.columns == 256 ? 2 : 16;
  static constexpr int kUnrolledPages = kConfig.columns == 256 ? 1 : 4;

  __device__ KeyRing(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters),
        shared_(shared),
        first_(ptx::shared_address(shared.ring[group()])),
        chunk_(first_ + own_offset()) {}

  __device__ __forceinline__ static int group() {
    return static_cast<int>(ptx::opaque(threadIdx.x)) / kConfig.group_threads();
  }
  __device__ __forceinline__ static int thread() {
    return static_cast<int>(ptx::opaque(threadIdx.x)) % kConfig.group_threads();
  }

  // Key 0 of the segment's sequence in K or V, at the thread's first column. In a paged cache it is
  // that of page 0.
  __device__ __forceinline__ const Element* source(const problem::View& view) const {
    const Segment& segment = shared_.segment;
    const bool no_batch = parameters_.problem.k_packed || parameters_.pages.present();
    const std::int64_t batch = no_batch ? 0 : segment.sequence.batch;
    return static_cast<const Element*>(view.data) +
           view.offset(batch, segment.kv_head, segment.sequence.k_start) + column();
  }
  // The offset of a key of the sequence from source().
  __device__ __forceinline__ std::int64_t key_offset(const problem::View& view,
                                                     std::int32_t key) const {
    if (!parameters_.pages.present()) return key * view.row;
    return parameters_.pages.offset(view, shared_.segment.sequence.batch, key);
  }
  // The thread's first row of a tile, and its column.
  __device__ __forceinline__ static int row() { return thread() / kRowThreads; }
  __device__ __forceinline__ static int column() {
    return thread() % kRowThreads * (16 / kConfig.element_bytes());
  }

  // Starts with the first tiles. Keys that no row of the segment sees count as zeros and are not
  // read. `key`: the first of the group's first tile.
  __device__ __forceinline__ void start(std::int32_t key, std::int32_t tiles) {
    k_ = source(parameters_.problem.k);
    v_ = source(parameters_.problem.v);
    next_key_ = key + row();
    left_ = 2 * tiles;
    if (parameters_.pages.present()) place_ = next_place();
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
      ptx::named_barrier_sync(static_cast<std::uint32_t>(1 + group()), kConfig.group_threads());
    }
  }
  // Returns whether `own` is true in any thread of the group. All of them call it.
  __device__ __forceinline__ bool any_of_group(bool own) const {
    const bool any = __any_sync(~0u, own);
    if constexpr (kConfig.row_warps == 1) return any;
    if (threadIdx.x % 32 == 0) shared_.votes[threadIdx.x / 32] = any;
    sync_group();
    bool result = false;
#pragma unroll
    for (int warp = 0; warp < kConfig.row_warps; ++warp)
      result |= shared_.votes[group() * kConfig.row_warps + warp];
    sync_group();
    return result;
  }

 private:
  __device__ __forceinline__ static std::int32_t own_offset() {
    return Layout::place(thread() / kRowThreads, thread() % kRowThreads);
  }

  // Starts the copy of the next tile, which is K or V, if there is one.
  __device__ __forceinline__ void fetch(bool is_k) {
    if (left_ > 0) {
      const Problem& problem = parameters_.problem;
      const std::int64_t stride = is_k ? problem.k.row : problem.v.row;
      const bool inside = column() < (is_k ? problem.head_dim : problem.value_dim);
      const tile::Range keys = shared_.segment.keys;
      const Element* from = (is_k ? k_ : v_) + next_key_ * stride;
      const std::uint32_t to = chunk_ + next_slot_ * kConfig.tile_bytes();
      if (parameters_.pages.present()) {
        fetch_pages(is_k, to);
      } else {
#pragma unroll(kUnrolled)
        for (int i = 0; i < kConfig.keys / kStep; ++i, from += kStep * stride) {
          const std::int32_t key = next_key_ + i * kStep;
          const bool visible = inside && key >= keys.begin && key < keys.end;
          ptx::cp_async_16(row_place(to, i), from, visible);
        }
      }
      --left_;
      if (!is_k) {
        next_key_ += kConfig.block_keys();
        if (parameters_.pages.present() && left_ > 0) place_ = next_place();
      }
      next_slot_ = next_slot_ + 1 == kConfig.slots ? 0 : next_slot_ + 1;
    }
    ptx::cp_async_commit();
  }

  // Each lane of a warp looks up one of the rows of a tile that the warp copies.
  static constexpr int kBases = 32 / kRowThreads;  // first rows of the threads of a warp
  static_assert(kBases * kConfig.keys / kStep <= 32, "A lane looks up one row at most.");

  // Looks up the place of the lane's row of the next tile. It is needed when that tile is started,
  // so the load may take as long as a tile.
  __device__ __forceinline__ std::uint32_t next_place() const {
    const int lane = thread() % 32;
    const int row = thread() / 32 * kBases + lane % kBases + lane / kBases * kStep;
    const tile::Range keys = shared_.segment.keys;
    const std::int32_t key = next_key_ - thread() / kRowThreads + row;
    return parameters_.pages.place(shared_.segment.sequence.batch,
                                   math::max(math::min(key, keys.end - 1), keys.begin));
  }

  // Starts the copy of the next tile from the pages of its keys. `to`: the thread's first chunk in
  // the tile
  __device__ __forceinline__ void fetch_pages(bool is_k, std::uint32_t to) {
    const Problem& problem = parameters_.problem;
    const problem::View& view = is_k ? problem.k : problem.v;
    const bool inside = column() < (is_k ? problem.head_dim : problem.value_dim);
    const tile::Range keys = shared_.segment.keys;
#pragma unroll(kUnrolledPages)
    for (int i = 0; i < kConfig.keys / kStep; ++i) {
      const std::int32_t key = next_key_ + i * kStep;
      const bool visible = inside && key >= keys.begin && key < keys.end;
      const std::uint32_t place =
          __shfl_sync(~0u, place_, thread() % 32 / kRowThreads + i * kBases);
      const Element* const from = (is_k ? k_ : v_) + parameters_.pages.offset(view, place);
      ptx::cp_async_16(row_place(to, i), from, visible);
    }
  }
  // The place of the thread's i-th row in a tile. Bits of the row that the step does not touch are
  // in the thread's own offset.
  __device__ __forceinline__ static std::uint32_t row_place(std::uint32_t to, int i) {
    constexpr int kSwizzled = 8;
    return (to ^ static_cast<std::uint32_t>(i * kStep % kSwizzled * 16)) +
           i * kStep * Layout::kRowBytes;
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  std::uint32_t first_;  // address of the ring
  std::uint32_t chunk_;  // of the thread's first chunk in it
  const Element* k_;
  const Element* v_;
  std::int32_t next_key_;  // the thread's first key of the next tile that is started
  std::int32_t left_;      // tiles that are not started yet
  std::int32_t next_slot_;
  std::int32_t slot_;
  std::uint32_t place_;  // of the lane's row of the tile that is started next (Pages::place())
};

}  // namespace tilewise::cuda::decode
