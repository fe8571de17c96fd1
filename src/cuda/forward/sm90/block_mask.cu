// The kernels before a Hopper kernel that make its block mask: one classifies the tiles of scores
// and stores the bits of partial ones, one puts the query tiles of a list in order.
#include "cuda/forward/sm90/block_mask.cuh"
#include "cuda/forward/sm90/parameters.h"
#include "cuda/host/bands.h"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/host/sequences.cuh"
#include "cuda/tile/fragment.h"
#include "math/integer.h"

namespace tilewise::cuda::sm90 {
namespace {

using tile::BlockMask;
using tile::BlockMaskRow;
using tile::BlockMaskWord;
using tile::kLanesPerRow;
using tile::kTilesOfWord;

// What a row sees of a key tile, for each of the four lanes that share it.
struct RowBits {
  std::uint32_t lane[kLanesPerRow];
};

// Reads the masks of a query tile of one list.
class MaskReader {
 public:
  __device__ MaskReader(const Parameters& parameters, std::int32_t list, std::int32_t first,
                        std::int32_t q_tile, std::int32_t k_tile)
      : problem_(parameters.problem),
        bands_(parameters.block_mask.bands),
        slices_(static_cast<std::int32_t>(problem_.slices.count)),
        k_tile_(k_tile) {
    const BlockMask& mask = parameters.block_mask;
    const std::int32_t heads = mask.head_step != 0 ? static_cast<std::int32_t>(problem_.heads) : 1;
    batch_ = list / heads;
    head_ = list % heads;
    const Sequence sequence = sequence_at(problem_, nullptr, batch_);
    q_len_ = static_cast<std::int32_t>(sequence.q_len);
    k_len_ = static_cast<std::int32_t>(sequence.k_len);
    first_ = first;
    last_ = math::min(first + q_tile, q_len_) - 1;
    const tile::WindowBand edges =
        tile::window_band(k_len_, static_cast<std::int32_t>(sequence.diagonal),
                          parameters.scheduler.window_left, parameters.scheduler.window_right);
    window_ = {{0, q_len_, 0, k_len_, edges.lower_slope, edges.lower_offset, edges.upper_slope,
                edges.upper_offset},
               -1};
  }

  // The class of a key tile as the slices or the window have it: full only where one of them shows
  // all, and not where the boolean mask has still to be asked.
  __device__ tile::TileClass classify(std::int32_t key) const {
    const tile::Range keys = {key * k_tile_, (key + 1) * k_tile_};
    if (first_ > last_ || keys.begin >= k_len_) return tile::kEmpty;
    tile::TileClass result = tile::kEmpty;
    const auto add = [&](const tile::Band& band) {
      const tile::TileClass own = tile::classify(band, first_, last_, keys.begin, keys.end);
      if (own > result) result = own;
    };
    if (problem_.slices.present()) {
      visit_bands(bands_, slices_, head_, k_len_, {first_, last_ + 1}, keys, add);
    } else {
      add(window_);
    }
    return result == tile::kFull && problem_.mask.present() ? tile::kPartial : result;
  }

  // What a row sees of a key tile. Of a row after the last one, all bits are set.
  __device__ RowBits bits(std::int32_t row, std::int32_t key) const {
    const std::uint32_t all = tile::all_columns(k_tile_);
    if (row > last_) return {all, all, all, all};
    const tile::Range keys = {key * k_tile_, (key + 1) * k_tile_};
    RowBits bits = {};
    const auto add = [&](const tile::Band& band) {
#pragma unroll
      for (int lane = 0; lane < kLanesPerRow; ++lane) {
        bits.lane[lane] |= tile::visible_bits(
            band, row, tile::FragmentColumns{keys.begin, tile::lane_column(lane)});
      }
    };
    if (problem_.slices.present()) {
      visit_bands(bands_, slices_, head_, k_len_, {row, row + 1}, keys, add);
    } else {
      add(window_);
    }
    for (std::uint32_t& own : bits.lane) own &= all;
    if (problem_.mask.present()) clear_masked(row, keys.begin, bits);
    return bits;
  }

  __device__ bool owns(std::int32_t row) const { return row <= last_; }

 private:
  // Clears the bits of keys that the boolean mask masks.
  __device__ void clear_masked(std::int32_t row, std::int32_t first, RowBits& bits) const {
    const problem::View& view = problem_.mask;
    const auto* const mask =
        static_cast<const std::uint8_t*>(view.data) + view.offset(batch_, head_, row, first);
    const std::int32_t columns = math::min(k_tile_, k_len_ - first);
    const bool wide = view.column == 1 && columns == k_tile_ &&
                      reinterpret_cast<std::uintptr_t>(mask) % sizeof(uint4) == 0;
#pragma unroll 1
    for (std::int32_t chunk = 0; chunk < columns; chunk += 16) {
      std::uint32_t bytes[4] = {};
      if (wide) {
        const uint4 loaded = *reinterpret_cast<const uint4*>(mask + chunk);
        bytes[0] = loaded.x;
        bytes[1] = loaded.y;
        bytes[2] = loaded.z;
        bytes[3] = loaded.w;
      } else {
        const std::int32_t count = math::min(16, columns - chunk);
        for (std::int32_t c = 0; c < count; ++c)
          bytes[c / 4] |= (mask[(chunk + c) * view.column] != 0 ? 1u : 0u) << c % 4 * 8;
      }
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        // Bit 8 n is set where byte n is not zero. Bytes 0 and 1 are those of one lane, 2 and 3
        // those of the next.
        const std::uint32_t seen =
            (((bytes[word] & 0x7F7F7F7Fu) + 0x7F7F7F7Fu) | bytes[word]) >> 7 & 0x01010101u;
        const int at = chunk / 8 * 2 + word / 2 * 2;
        const std::uint32_t low = ~((seen & 1u) | (seen >> 7 & 2u));
        const std::uint32_t high = ~((seen >> 16 & 1u) | (seen >> 23 & 2u));
        bits.lane[word % 2 * 2] &= ~((low & 3u) << at);
        bits.lane[word % 2 * 2 + 1] &= ~((high & 3u) << at);
      }
    }
  }

  const problem::Problem& problem_;
  const tile::Band* bands_;
  std::int32_t slices_;
  std::int32_t k_tile_;
  std::int32_t batch_, head_;
  std::int32_t q_len_, k_len_;
  std::int32_t first_, last_;  // rows of the query tile
  tile::Band window_;
};

// What the first warp of a block finds in a word. In dynamic memory, since blocks of the emulated
// device that share a counter alternate.
struct FoundTiles {
  std::uint32_t asked;  // key tiles of which every bit must be looked at
  std::uint32_t full;
  std::int32_t bits_begin;
};

// A block has a word of a query tile, and a thread for each of its rows. Where the bits of a word
// begin depends on the order of the blocks; nothing else does.
__global__ void classify_kernel(const __grid_constant__ Parameters parameters,
                                std::int32_t k_tile) {
  const BlockMask& mask = parameters.block_mask;
  const std::int32_t q_tile = static_cast<std::int32_t>(blockDim.x);
  const std::int64_t block = blockIdx.x;
  const std::int64_t tile_number = block / mask.word_count;
  const std::int32_t word = static_cast<std::int32_t>(block % mask.word_count);
  const std::int32_t first = static_cast<std::int32_t>(tile_number % mask.q_tiles) * q_tile;
  const MaskReader reader(parameters, static_cast<std::int32_t>(tile_number / mask.q_tiles), first,
                          q_tile, k_tile);
  FoundTiles& found = *reinterpret_cast<FoundTiles*>(dynamic_shared());
  const std::int32_t thread = static_cast<std::int32_t>(threadIdx.x);
  if (thread < 32) {
    const tile::TileClass own = reader.classify(word * kTilesOfWord + thread);
    const unsigned partial = __ballot_sync(~0u, own == tile::kPartial);
    const unsigned whole = __ballot_sync(~0u, own == tile::kFull);
    if (thread == 0) {
      found = {partial, whole, -1};
      const std::int32_t count = __popc(partial);
      if (count > 0) {
        const unsigned begin = atomicAdd(mask.used, static_cast<unsigned>(count));
        if (std::int64_t{begin} + count <= mask.capacity)
          found.bits_begin = static_cast<std::int32_t>(begin);
      }
    }
  }
  __syncthreads();
  BlockMaskWord result = {found.full, 0, found.bits_begin, -1};
  std::int32_t stored = found.bits_begin;
  for (unsigned left = found.asked; left != 0; left &= left - 1) {
    const std::int32_t bit = __ffs(static_cast<int>(left)) - 1;
    const RowBits bits = reader.bits(first + thread, word * kTilesOfWord + bit);
    const std::uint32_t any = bits.lane[0] | bits.lane[1] | bits.lane[2] | bits.lane[3];
    const std::uint32_t all = bits.lane[0] & bits.lane[1] & bits.lane[2] & bits.lane[3];
    const bool is_visited = __syncthreads_or(any != 0 && reader.owns(first + thread)) != 0;
    const bool is_partial = __syncthreads_or(all != tile::all_columns(k_tile)) != 0;
    if (!is_visited) continue;
    result.visited |= 1u << bit;
    if (!is_partial) continue;
    result.partial |= 1u << bit;
    if (stored < 0) continue;
    const std::int64_t row = std::int64_t{stored} * q_tile + thread;
    reinterpret_cast<uint4*>(mask.bits)[row] =
        make_uint4(bits.lane[0], bits.lane[1], bits.lane[2], bits.lane[3]);
    ++stored;
  }
  if (thread == 0) mask.words[block] = result;
}

inline constexpr int kOrderThreads = 256;

// A block has a list. Query tiles that visit as many key tiles as others follow in their order.
__global__ void __launch_bounds__(kOrderThreads)
    order_kernel(const __grid_constant__ Parameters parameters) {
  const BlockMask& mask = parameters.block_mask;
  const std::int64_t first = std::int64_t{blockIdx.x} * mask.q_tiles;
  BlockMaskRow* const rows = mask.rows + first;
  for (std::int32_t q = static_cast<std::int32_t>(threadIdx.x); q < mask.q_tiles;
       q += kOrderThreads) {
    BlockMaskWord* const words = mask.words + (first + q) * mask.word_count;
    BlockMaskRow row = {0, 0, -1, 0};
    std::int32_t full_key = -1;
    for (std::int32_t w = 0; w < mask.word_count; ++w) {
      const BlockMaskWord word = words[w];
      words[w].next = row.last_word;
      if (word.visited == 0) continue;
      row.count += __popc(word.visited);
      row.last_word = w;
      row.start_key = w * kTilesOfWord + tile::last_bit(word.visited);
      if (word.partial != 0) row.cut = 1;
      const unsigned full = word.visited & ~word.partial;
      if (full != 0) full_key = w * kTilesOfWord + tile::last_bit(full);
    }
    if (full_key >= 0) row.start_key = full_key;
    rows[q] = row;
  }
  __syncthreads();
  for (std::int32_t q = static_cast<std::int32_t>(threadIdx.x); q < mask.q_tiles;
       q += kOrderThreads) {
    const std::int32_t own = rows[q].count;
    std::int32_t before = 0;
    for (std::int32_t other = 0; other < mask.q_tiles; ++other) {
      const std::int32_t count = rows[other].count;
      before += count > own || (count == own && other < q) ? 1 : 0;
    }
    mask.order[first + before] = q;
  }
}

}  // namespace

cudaError_t load_block_mask_kernels() {
  cudaError_t error = load_band_kernel();
  if (error == cudaSuccess) error = load(classify_kernel);
  return error == cudaSuccess ? load(order_kernel) : error;
}

cudaError_t start_block_mask(const Parameters& parameters, int q_tile, int k_tile,
                             cudaStream_t stream) {
  const BlockMask& mask = parameters.block_mask;
  cudaError_t error = start_bands(parameters.problem, mask.bands, stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(mask.used, 0, sizeof(*mask.used), stream);
  if (error != cudaSuccess) return error;
  const std::int64_t blocks = std::int64_t{mask.lists} * mask.q_tiles * mask.word_count;
  const cudaError_t classified =
      launch(classify_kernel, {blocks, q_tile, sizeof(FoundTiles)}, stream, parameters, k_tile);
  if (classified != cudaSuccess) return classified;
  return launch(order_kernel, {mask.lists, kOrderThreads}, stream, parameters);
}

}  // namespace tilewise::cuda::sm90
