#include "cuda/mask/block_mask.h"

#include "cuda/host/sequences.cuh"
#include "math/integer.h"

namespace tilewise::cuda::mask {

using problem::Checked;
using problem::fail;
using problem::Problem;

namespace {

// Without a boolean mask there is room for the bits of so many partial tiles for each tile of the
// owner, so that the workspace grows with its rows alone. What rows see of others is looked up in
// the list of slices.
constexpr std::int64_t kPartialTiles = 16;

// The number of lists, and their size.
struct Extent {
  bool by_batch;
  bool by_head;
  Checked lists;
  Checked own_tiles;    // of a list
  Checked other_tiles;  // of an own tile
  Checked words;        // of an own tile

  Extent(const Problem& problem, const Tiling& tiling)
      : by_batch(problem.mask.batch != 0 || problem.seqused_q.present() ||
                 problem.seqused_k.present()),
        by_head(problem.mask.head != 0 || problem.slices.columns == 6),
        lists(Checked{by_batch ? problem.batch : 1} * Checked{by_head ? problem.heads : 1}),
        own_tiles{math::ceil_div(tiling.owner == Owner::kQueries ? problem.q_rows : problem.k_rows,
                                 tiling.own)},
        other_tiles{math::ceil_div(
            tiling.owner == Owner::kQueries ? problem.k_rows : problem.q_rows, tiling.other)},
        words{math::max(math::ceil_div(other_tiles.value, tile::kTilesOfWord), 1)} {}

  Checked capacity(const Problem& problem) const {
    const bool all = problem.mask.present() || other_tiles.value < kPartialTiles;
    return lists * own_tiles * (all ? other_tiles : Checked{kPartialTiles});
  }
};

}  // namespace

problem::Status check_options(const Problem& problem, std::initializer_list<Option> options) {
  for (const Option& option : options) {
    if (option.given) return fail(TILEWISE_UNSUPPORTED, "%s is given", option.name);
  }
  if (problem.mask.present() && has_table(problem))
    return fail(TILEWISE_UNSUPPORTED, "mask is given, and cu_seqlens");
  return TILEWISE_OK;
}

problem::Status check_block_mask(const Problem& problem, const Tiling& tiling) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const Extent extent(problem, tiling);
  const Checked words = extent.lists * extent.own_tiles * extent.words;
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

BlockMaskPlaces reserve_block_mask(const Problem& problem, std::initializer_list<Tiling> tilings,
                                   problem::Arena& arena) {
  // The larger number of all configurations.
  const auto reserve = [&](const auto& bytes_of) {
    Checked most;
    for (const Tiling& tiling : tilings) {
      const Extent extent(problem, tiling);
      const Checked bytes = bytes_of(extent, extent.lists * extent.own_tiles, tiling.own);
      if (!bytes.valid || bytes.value > most.value) most = bytes;
      if (!most.valid) break;
    }
    return arena.reserve(most).value;
  };
  BlockMaskPlaces places;
  places.words = reserve([](const Extent& extent, Checked own_tiles, int) {
    return own_tiles * extent.words * Checked{sizeof(tile::BlockMaskWord)};
  });
  for (std::int64_t* const place : {&places.rows, &places.order}) {
    *place = reserve([](const Extent&, Checked own_tiles, int) {
      return own_tiles * Checked{sizeof(tile::BlockMaskRow)};
    });
  }
  places.bits = reserve([&](const Extent& extent, Checked, int own) {
    constexpr std::int64_t kRowBytes = tile::kLanesPerRow * sizeof(*tile::BlockMask::bits);
    return extent.capacity(problem) * Checked{own * kRowBytes};
  });
  places.used = arena.reserve(Checked{sizeof(*tile::BlockMask::used)}).value;
  return places;
}

tile::BlockMask block_mask_at(const Problem& problem, const Tiling& tiling,
                              const BlockMaskPlaces& places, std::byte* workspace,
                              const tile::Band* bands) {
  const Extent extent(problem, tiling);
  const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  const std::int32_t heads = extent.by_head ? narrow(problem.heads) : 1;
  return {.words = reinterpret_cast<tile::BlockMaskWord*>(workspace + places.words),
          .rows = reinterpret_cast<tile::BlockMaskRow*>(workspace + places.rows),
          .order = reinterpret_cast<tile::BlockMaskRow*>(workspace + places.order),
          .bits = reinterpret_cast<std::uint32_t*>(workspace + places.bits),
          .used = reinterpret_cast<unsigned*>(workspace + places.used),
          .bands = bands,
          .capacity = narrow(extent.capacity(problem).value),
          .lists = narrow(extent.lists.value),
          .q_tiles = narrow(extent.own_tiles.value),
          .word_count = narrow(extent.words.value),
          .batch_step = extent.by_batch ? heads : 0,
          .head_step = extent.by_head ? 1 : 0};
}

}  // namespace tilewise::cuda::mask
