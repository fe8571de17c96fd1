#include "cuda/forward/sm90/block_mask.h"

#include "cuda/host/bands.h"
#include "math/integer.h"

namespace tilewise::cuda::sm90 {

using problem::Checked;
using problem::fail;
using problem::Problem;

namespace {

// Without a boolean mask there is room for the bits of so many partial tiles for each query tile,
// so that the workspace grows with the queries alone. What rows see of others is looked up in the
// list of slices.
constexpr std::int64_t kPartialTiles = 16;

// How many lists there are, and of what size.
struct Extent {
  bool by_batch;
  bool by_head;
  Checked lists;
  Checked q_tiles;  // of a list
  Checked k_tiles;  // of a query tile
  Checked words;    // of a query tile

  Extent(const Problem& problem, const KernelConfig& config)
      : by_batch(problem.mask.batch != 0 || problem.seqused_q.present() ||
                 problem.seqused_k.present()),
        by_head(problem.mask.head != 0 || problem.slices.columns == 6),
        lists(Checked{by_batch ? problem.batch : 1} * Checked{by_head ? problem.heads : 1}),
        q_tiles{math::ceil_div(problem.q_rows, config.q_tile)},
        k_tiles{math::ceil_div(problem.k_rows, config.k_tile)},
        words{math::max(math::ceil_div(k_tiles.value, tile::kTilesOfWord), 1)} {}

  Checked capacity(const Problem& problem) const {
    const bool all = problem.mask.present() || k_tiles.value < kPartialTiles;
    return lists * q_tiles * (all ? k_tiles : Checked{kPartialTiles});
  }
};

}  // namespace

problem::Status check_block_mask(const Problem& problem, const KernelConfig& config) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const Extent extent(problem, config);
  const Checked words = extent.lists * extent.q_tiles * extent.words;
  const Checked capacity = extent.capacity(problem);
  if (!words.valid || words.value > kMost || !capacity.valid || capacity.value > kMost) {
    return fail(TILEWISE_UNSUPPORTED, "the mask has more than %lld tiles of scores",
                static_cast<long long>(kMost));
  }
  if (problem.slices.count > kMost) {
    return fail(TILEWISE_UNSUPPORTED, "slices has %lld rows, must have at most %lld",
                static_cast<long long>(problem.slices.count), static_cast<long long>(kMost));
  }
  return TILEWISE_OK;
}

BlockMaskPlaces reserve_block_mask(const Problem& problem,
                                   std::initializer_list<KernelConfig> configs,
                                   problem::Arena& arena) {
  // The larger number of all configurations.
  const auto reserve = [&](const auto& bytes_of) {
    Checked most;
    for (const KernelConfig& config : configs) {
      const Extent extent(problem, config);
      const Checked bytes = bytes_of(extent, extent.lists * extent.q_tiles, config.q_tile);
      if (!bytes.valid || bytes.value > most.value) most = bytes;
      if (!most.valid) break;
    }
    return arena.reserve(most).value;
  };
  BlockMaskPlaces places;
  places.words = reserve([](const Extent& extent, Checked q_tiles, int) {
    return q_tiles * extent.words * Checked{sizeof(tile::BlockMaskWord)};
  });
  for (std::int64_t* const place : {&places.rows, &places.order}) {
    *place = reserve([](const Extent&, Checked q_tiles, int) {
      return q_tiles * Checked{sizeof(tile::BlockMaskRow)};
    });
  }
  places.bits = reserve([&](const Extent& extent, Checked, int q_tile) {
    constexpr std::int64_t kRowBytes = tile::kLanesPerRow * sizeof(*tile::BlockMask::bits);
    return extent.capacity(problem) * Checked{q_tile * kRowBytes};
  });
  places.used = arena.reserve(Checked{sizeof(*tile::BlockMask::used)}).value;
  places.bands = arena.reserve(Checked{band_table_bytes(problem)}).value;
  return places;
}

tile::BlockMask block_mask_at(const Problem& problem, const KernelConfig& config,
                              const BlockMaskPlaces& places, std::byte* workspace) {
  const Extent extent(problem, config);
  const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  const std::int32_t heads = extent.by_head ? narrow(problem.heads) : 1;
  return {.words = reinterpret_cast<tile::BlockMaskWord*>(workspace + places.words),
          .rows = reinterpret_cast<tile::BlockMaskRow*>(workspace + places.rows),
          .order = reinterpret_cast<tile::BlockMaskRow*>(workspace + places.order),
          .bits = reinterpret_cast<std::uint32_t*>(workspace + places.bits),
          .used = reinterpret_cast<unsigned*>(workspace + places.used),
          .bands = reinterpret_cast<const tile::Band*>(workspace + places.bands),
          .capacity = narrow(extent.capacity(problem).value),
          .lists = narrow(extent.lists.value),
          .q_tiles = narrow(extent.q_tiles.value),
          .word_count = narrow(extent.words.value),
          .batch_step = extent.by_batch ? heads : 0,
          .head_step = extent.by_head ? 1 : 0};
}

}  // namespace tilewise::cuda::sm90
