#include "explain_mask.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "mask_flags.h"
#include "mask_plot.h"
#include "math/integer.h"
#include "outputs.h"
#include "table.h"

namespace tilewise::cli {
namespace {

using distributed::magi::Mask;
using nlohmann::json;

constexpr std::int64_t kDefaultTile = 128;
constexpr std::int64_t kMostTiles = std::int64_t{1} << 28;  // they are counted one by one
constexpr const char* kTileFlags[] = {"tile", "head", "bare"};
constexpr const char* kAlgorithmFlags[] = {"op", "sram",
                                           "dtype"};  // a mask does not depend on them

Shape shape_of(const Flags& flags) {
  if (!flags.given("shape")) {
    if (flags.given("slices")) return shape_of_slices(flags);
    throw UsageError("--shape: missing (or --slices FILE)");
  }
  Shape shape = shape_flag(flags);
  if (!flags.given("slices") && !flags.given("cu-seqlens-q")) shape.batch = 1;  // all have one mask
  return shape;
}

TileShape tile_of(const Flags& flags, const Mask& mask) {
  TileShape tile = {kDefaultTile, kDefaultTile};
  if (flags.given("tile")) {
    const std::vector<std::int64_t> sizes = flags.integers("tile", 2, 2);
    tile = {sizes[0], sizes[1]};
  }
  if (tile.rows < 1 || tile.keys < 1) {
    throw UsageError(
        fmt::format("--tile: is \"{}\", must be two numbers from 1 on", flags.text("tile")));
  }
  const std::int64_t rows = mask.q_len / tile.rows + 1;
  const std::int64_t columns = mask.k_len / tile.keys + 1;
  if (rows > kMostTiles / columns) {
    throw UsageError(fmt::format("--tile: {} x {} tiles of {} x {}, must be at most {} in all",
                                 rows, columns, tile.rows, tile.keys, kMostTiles));
  }
  return tile;
}

double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

void print_json(const Mask& mask, const TileShape& tile, const TileCounts& counts) {
  const json result = {{"q_len", mask.q_len},
                       {"k_len", mask.k_len},
                       {"heads", mask.heads},
                       {"slices", mask.bands.size()},
                       {"tile", {tile.rows, tile.keys}},
                       {"pairs", counts.pairs},
                       {"visible_pairs", counts.visible_pairs},
                       {"visited_pairs", counts.visited_pairs},
                       {"skipped_pairs", counts.pairs - counts.visited_pairs},
                       {"visible_share", share(counts.visible_pairs, counts.pairs)},
                       {"visited_share", share(counts.visited_pairs, counts.pairs)},
                       {"tiles",
                        {{"full", counts.full_tiles},
                         {"partial", counts.partial_tiles},
                         {"empty", counts.tiles - counts.full_tiles - counts.partial_tiles}}}};
  fmt::print("{}\n", result.dump());
}

void print_text(const Mask& mask, const TileShape& tile, const TileCounts& counts) {
  fmt::print("{} queries x {} keys{}, {} slice{}, tiles of {} x {}\n\n", mask.q_len, mask.k_len,
             mask.heads == 1 ? "" : fmt::format(", sum over {} heads", mask.heads),
             mask.bands.size(), mask.bands.size() == 1 ? "" : "s", tile.rows, tile.keys);
  Table areas({"area", "pairs", "share"});
  const auto add = [&](const char* name, std::int64_t pairs) {
    areas.add({name, fmt::format("{}", pairs),
               fmt::format("{:.2f} %", 100 * share(pairs, counts.pairs))});
  };
  add("visible", counts.visible_pairs);
  add("visited", counts.visited_pairs);
  add("skipped", counts.pairs - counts.visited_pairs);
  fmt::print("{}\n", areas.text());
  Table tiles({"tiles", "number", "share"});
  const auto add_tiles = [&](const char* name, std::int64_t number) {
    tiles.add({name, fmt::format("{}", number),
               fmt::format("{:.2f} %", 100 * share(number, counts.tiles))});
  };
  add_tiles("full", counts.full_tiles);
  add_tiles("partial", counts.partial_tiles);
  add_tiles("empty", counts.tiles - counts.full_tiles - counts.partial_tiles);
  fmt::print("{}\n{:.1f} % of what is visited is visible.\n", tiles.text(),
             100 * share(counts.visible_pairs, counts.visited_pairs));
}

}  // namespace

void add_tile_flags(Flags& flags) {
  flags.add_value("tile", "BR,BC", "queries and keys of a tile; default 128,128");
  flags.add_value("head", "H", "the head that --plot draws, if slices name heads; default 0");
  flags.add_switch("bare", "--plot: the mask alone, without title, axes and legend");
}

void check_tile_flags(const Flags& flags) {
  for (const char* name : kTileFlags) {
    if (flags.given(name)) throw UsageError(fmt::format("--{}: given with --ranks", name));
  }
}

bool is_about_the_mask(const Flags& flags) {
  for (const char* name :
       {"slices", "cu-seqlens-q", "cu-seqlens-k", "plot", "tile", "head", "bare"}) {
    if (flags.given(name)) return true;
  }
  return false;
}

int explain_mask(const Flags& flags) {
  for (const char* name : kAlgorithmFlags) {
    if (!flags.given(name)) continue;
    throw UsageError(fmt::format(
        "--{}: given where a mask is explained (with --slices, --cu-seqlens-q, --tile or --plot)",
        name));
  }
  for (const char* name : {"head", "bare"}) {
    if (flags.given(name) && !flags.given("plot")) {
      throw UsageError(fmt::format("--{}: given without --plot", name));
    }
  }
  const Mask mask = read_mask(flags, shape_of(flags));
  const TileShape tile = tile_of(flags, mask);
  const std::int64_t drawn = flags.integer("head", 0, math::max(mask.heads - 1, 0), 0);
  TileCounts counts;
  MaskPicture picture = {mask, tile, drawn, {}, {}};
  for (std::int64_t head = 0; head < mask.heads; ++head) {
    const bool plotted = flags.given("plot") && head == drawn;
    const TileCounts own = count_tiles(mask, head, tile, plotted ? &picture.runs : nullptr);
    if (head == drawn) picture.counts = own;
    counts.add(own);
  }
  if (flags.given("plot")) {
    write_text(flags.text("plot"),
               flags.given("bare") ? bare_mask_svg(picture) : mask_svg(picture));
  }
  if (flags.given("json")) {
    print_json(mask, tile, counts);
    return 0;
  }
  print_text(mask, tile, counts);
  if (flags.given("plot")) fmt::print("\nplot: {}\n", flags.text("plot"));
  return 0;
}

}  // namespace tilewise::cli
