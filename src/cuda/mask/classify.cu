// The kernels before a Hopper kernel that make its block mask: one classifies the tiles of scores
// and stores the bits of partial ones, one puts the query tiles of a list in order. In the names
// here queries own the lists (block_mask.h).
#include "cuda/host/bands.h"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/mask/key_mask_reader.cuh"
#include "cuda/mask/query_mask_reader.cuh"
#include "cuda/ptx/pdl.cuh"
#include "math/integer.h"

namespace tilewise::cuda::mask {
namespace {

using tile::BlockMask;
using tile::BlockMaskRow;
using tile::BlockMaskWord;
using tile::kTilesOfWord;

// Words that a block classifies at once, one by each of its first warps.
inline constexpr int kWordsAtOnce = 8;
// A block has as many threads for each row of its query tile as fit, which take key tiles in turns.
inline constexpr int kMostThreads = 1024;

// In dynamic memory, since blocks of the emulated device that share a counter alternate.
struct ClassifyShared {
  StagedMask masks[kMostThreads / 32];  // of each warp
  TileBands bands;
  std::uint32_t asked[kWordsAtOnce];    // key tiles of which every row is looked at,
  std::uint32_t full[kWordsAtOnce];     // those that are known to be full,
  std::uint32_t visited[kWordsAtOnce];  // and what was found in the first
  std::uint32_t partial[kWordsAtOnce];
  std::int32_t first_bits[kWordsAtOnce];
};

// Classifies the words from `first_word` on. Returns how many there are.
template <class Reader>
__device__ std::int32_t classify_words(const BlockMask& mask, const Reader& reader,
                                       std::int32_t first_word, ClassifyShared& shared) {
  const std::int32_t count = math::min(mask.word_count - first_word, kWordsAtOnce);
  const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x) / 32;
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
  if (warp < count) {
    const tile::TileClass own = reader.classify((first_word + warp) * kTilesOfWord + lane);
    const unsigned asked = __ballot_sync(~0u, own == tile::kPartial);
    const unsigned full = __ballot_sync(~0u, own == tile::kFull);
    if (lane == 0) {
      shared.asked[warp] = asked;
      shared.full[warp] = full;
      shared.visited[warp] = shared.partial[warp] = 0;
    }
  }
  return count;
}

// Finds room for the bits of the asked key tiles of `count` words: with a boolean mask each tile of
// scores has its own. Which room depends on the order of the blocks; nothing else does. One thread.
__device__ void find_room(const BlockMask& mask, bool all, std::int64_t tile_number,
                          std::int32_t number, std::int32_t count, ClassifyShared& shared) {
  std::int32_t asked = 0;
  for (std::int32_t slot = 0; slot < count; ++slot) asked += __popc(shared.asked[slot]);
  std::int64_t first = tile_number * (mask.capacity / (mask.lists * mask.q_tiles)) + number;
  if (!all) first = asked > 0 ? atomicAdd(mask.used, static_cast<unsigned>(asked)) : 0;
  for (std::int32_t slot = 0; slot < count; ++slot) {
    shared.first_bits[slot] = static_cast<std::int32_t>(math::min(first, mask.capacity));
    first += __popc(shared.asked[slot]);
  }
}

// Looks at every row of the asked key tiles of a word, and stores their bits as long as there is
// room. number: of the first such tile in the query tile.
template <class Reader>
__device__ void look_at_rows(const BlockMask& mask, const Reader& reader, std::int32_t word,
                             const Tiling& tiling, std::int32_t number, ClassifyShared& shared,
                             std::int32_t slot) {
  const std::int32_t q_tile = tiling.own;
  const std::int32_t row = static_cast<std::int32_t>(threadIdx.x) % q_tile;
  const std::int32_t group = static_cast<std::int32_t>(threadIdx.x) / q_tile;
  const std::int32_t groups = static_cast<std::int32_t>(blockDim.x) / q_tile;
  std::int32_t place = shared.first_bits[slot] - 1;
  for (unsigned left = shared.asked[slot]; left != 0; left &= left - 1, ++number) {
    ++place;
    if (number % groups != group) continue;
    const std::int32_t bit = __ffs(static_cast<int>(left)) - 1;
    const RowBits bits =
        reader.bits(row, word * kTilesOfWord + bit, shared.masks[threadIdx.x / 32]);
    const std::uint32_t any = bits.lane[0] | bits.lane[1] | bits.lane[2] | bits.lane[3];
    const std::uint32_t all = bits.lane[0] & bits.lane[1] & bits.lane[2] & bits.lane[3];
    const bool is_visited = __any_sync(~0u, any != 0 && reader.owns(row)) != 0;
    const bool is_partial = __any_sync(~0u, all != tile::all_columns(tiling.other)) != 0;
    if (threadIdx.x % 32 == 0) {
      if (is_visited) atomicOr(&shared.visited[slot], 1u << bit);
      if (is_partial) atomicOr(&shared.partial[slot], 1u << bit);
    }
    if (place >= mask.capacity) continue;
    reinterpret_cast<uint4*>(mask.bits)[std::int64_t{place} * q_tile + row] =
        make_uint4(bits.lane[0], bits.lane[1], bits.lane[2], bits.lane[3]);
  }
}

// A block has a query tile.
template <class Reader>
__global__ void __launch_bounds__(kMostThreads, 1)
    classify_kernel(const __grid_constant__ MaskParameters parameters, Tiling tiling) {
  ClassifyShared& shared = *reinterpret_cast<ClassifyShared*>(dynamic_shared());
  ptx::launch_dependents();
  ptx::wait_for_dependency();
  const BlockMask& mask = parameters.mask;
  const std::int64_t tile_number = blockIdx.x;
  Reader reader(parameters, static_cast<std::int32_t>(tile_number / mask.q_tiles),
                static_cast<std::int32_t>(tile_number % mask.q_tiles) * tiling.own, tiling);
  if (threadIdx.x == 0) shared.bands.count = 0;
  __syncthreads();
  reader.collect_bands(parameters, shared.bands);
  __syncthreads();
  BlockMaskWord* const words = mask.words + tile_number * mask.word_count;
  BlockMaskRow result = {
      static_cast<std::int32_t>(tile_number % mask.q_tiles), 0, 0, 0, -1, 0, 0, 0};
  bool starts_full = false;
  std::int32_t number = 0;  // of asked key tiles
  for (std::int32_t first = 0; first < mask.word_count; first += kWordsAtOnce) {
    const std::int32_t count = classify_words(mask, reader, first, shared);
    __syncthreads();
    if (threadIdx.x == 0)
      find_room(mask, parameters.problem.mask.present(), tile_number, number, count, shared);
    __syncthreads();
    std::int32_t next_number = number;
    for (std::int32_t slot = 0; slot < count; ++slot) {
      look_at_rows(mask, reader, first + slot, tiling, next_number, shared, slot);
      next_number += __popc(shared.asked[slot]);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (std::int32_t slot = 0; slot < count; ++slot) {
        const unsigned asked = shared.asked[slot];
        const unsigned partial = shared.visited[slot] & shared.partial[slot];
        const unsigned full = shared.full[slot] | (shared.visited[slot] & ~partial);
        const unsigned visited = full | partial;
        const bool forwards = tiling.owner == Owner::kKeys;
        const BlockMaskWord word = {visited,
                                    partial,
                                    asked,
                                    shared.first_bits[slot],
                                    mask.capacity - shared.first_bits[slot],
                                    forwards ? -1 : result.last_word};
        words[first + slot] = word;
        if (visited == 0) continue;
        if (result.count == 0) {
          result.first_word = first + slot;
        } else if (forwards) {
          words[result.last_word].next = first + slot;
        }
        result.count += __popc(visited);
        result.last_word = first + slot;
        result.last_visited = visited;
        if (partial != 0) result.cut = 1;
        if (full == 0 && starts_full) continue;
        starts_full = full != 0;
        const std::int32_t bit = tile::last_bit(starts_full ? full : visited);
        result.start_key = (first + slot) * kTilesOfWord + bit;
        result.start_bits = tile::bits_of(word, bit);
      }
    }
    number = next_number;
    __syncthreads();
  }
  if (threadIdx.x == 0) mask.rows[tile_number] = result;
}

inline constexpr int kOrderThreads = 1024;

// A block has a list. Query tiles that visit as many key tiles as others follow in their order.
__global__ void __launch_bounds__(kOrderThreads)
    order_kernel(const __grid_constant__ MaskParameters parameters) {
  __shared__ std::int32_t counts[kOrderThreads];
  ptx::launch_dependents();
  ptx::wait_for_dependency();
  const BlockMask& mask = parameters.mask;
  const std::int64_t list = std::int64_t{blockIdx.x} * mask.q_tiles;
  const std::int32_t thread = static_cast<std::int32_t>(threadIdx.x);
  for (std::int32_t first = 0; first < mask.q_tiles; first += kOrderThreads) {
    const std::int32_t q = first + thread;
    BlockMaskRow row = {};
    if (q < mask.q_tiles) row = mask.rows[list + q];
    const std::int32_t own = row.count;
    std::int32_t before = 0;
    for (std::int32_t part = 0; part < mask.q_tiles; part += kOrderThreads) {
      const std::int32_t size = math::min(mask.q_tiles - part, kOrderThreads);
      __syncthreads();
      if (thread < size) counts[thread] = mask.rows[list + part + thread].count;
      __syncthreads();
      for (std::int32_t other = 0; other < size; ++other) {
        const std::int32_t count = counts[other];
        before += count > own || (count == own && part + other < q) ? 1 : 0;
      }
    }
    if (q < mask.q_tiles) mask.order[list + before] = row;
  }
}

}  // namespace

cudaError_t load_block_mask_kernels() {
  for (const auto load_kernel : {load_band_kernel, +[] { return load(order_kernel); },
                                 +[] { return load(classify_kernel<QueryMaskReader>); },
                                 +[] { return load(classify_kernel<KeyMaskReader>); }}) {
    const cudaError_t error = load_kernel();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t start_block_mask(const MaskParameters& parameters, const Tiling& tiling,
                             cudaStream_t stream) {
  const BlockMask& mask = parameters.mask;
  const std::int64_t blocks = std::int64_t{mask.lists} * mask.q_tiles;
  if (blocks == 0) return cudaSuccess;
  const auto kernel = tiling.owner == Owner::kQueries ? classify_kernel<QueryMaskReader>
                                                      : classify_kernel<KeyMaskReader>;
  const int threads = kMostThreads / tiling.own * tiling.own;
  const cudaError_t error =
      launch_early(kernel, {blocks, threads, sizeof(ClassifyShared)}, stream, parameters, tiling);
  if (error != cudaSuccess) return error;
  return launch_early(order_kernel, {mask.lists, kOrderThreads}, stream, parameters);
}

}  // namespace tilewise::cuda::mask
