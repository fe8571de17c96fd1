#include "mask_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "flags.h"
#include "svg.h"

namespace tilewise::cli {
namespace {

using math::TileClass;

// The geometry, in pixels.
constexpr double kWidth = 800;
constexpr double kMargin = 28;
constexpr double kLeft = 100;
constexpr double kTop = 132;
constexpr double kMostWidth = kWidth - kLeft - kMargin;
constexpr double kMostHeight = 640;
constexpr double kLeastSide = 60;
constexpr double kLegendHeight = 96;
constexpr double kBareWidth = 200;

constexpr const char* kFull = "#2b6cb0";
constexpr const char* kVisible = "#7db3e6";  // in partial tiles
constexpr const char* kMasked = "#fbd0a5";   // in partial tiles
constexpr const char* kEmpty = "#f3f4f6";
constexpr const char* kTileBorder = "#ffffff";
constexpr const char* kFrame = "#8c959f";

constexpr std::size_t kMostParts = 200000;  // runs of tiles and bands in one picture
constexpr std::int64_t kMostSteps = 100;    // rows of a band whose steps are drawn one by one

// The frame of the mask: its place in the picture, and the rows and keys that it shows.
struct Frame {
  double left;
  double top;
  double width;
  double height;
  std::int64_t rows;
  std::int64_t keys;

  double x(std::int64_t key) const { return left + width * ratio(key, keys); }
  double y(std::int64_t row) const { return top + height * ratio(row, rows); }

 private:
  static double ratio(std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

// The sides are in proportion to the lengths unless one would be too short to see.
Frame frame_of(const MaskPicture& picture, double left, double top, double most_width,
               double most_height) {
  const auto rows = static_cast<double>(std::max<std::int64_t>(picture.mask.q_len, 1));
  const auto keys = static_cast<double>(std::max<std::int64_t>(picture.mask.k_len, 1));
  const double scale = std::min(most_width / keys, most_height / rows);
  return {left,
          top,
          std::max(std::floor(scale * keys), std::min(kLeastSide, most_width)),
          std::max(std::floor(scale * rows), std::min(kLeastSide, most_height)),
          picture.mask.q_len,
          picture.mask.k_len};
}

std::string rectangle(double x0, double y0, double x1, double y1, const char* attributes) {
  return fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" {}/>\n",
                     x0, y0, x1 - x0, y1 - y0, attributes);
}

std::string draw_runs(const MaskPicture& picture, const Frame& frame, TileClass kind,
                      const char* color) {
  std::string path;
  for (const TileRun& run : picture.runs) {
    if (run.kind != kind) continue;
    const double x0 = frame.x(run.begin * picture.tile.keys);
    const double x1 = frame.x(std::min(run.end * picture.tile.keys, frame.keys));
    const double y0 = frame.y(run.row * picture.tile.rows);
    const double y1 = frame.y(std::min((run.row + 1) * picture.tile.rows, frame.rows));
    path += fmt::format("M{:.2f} {:.2f}H{:.2f}V{:.2f}H{:.2f}Z", x0, y0, x1, y1, x0);
  }
  return path.empty() ? "" : fmt::format("<path fill=\"{}\" d=\"{}\"/>\n", color, path);
}

// The rows at which an edge of the band turns, and its ends, in ascending order.
std::vector<std::int64_t> turns_of(const math::Band& band) {
  const std::int64_t lower = band.key_begin - band.lower_offset;
  const std::int64_t upper = band.key_end - band.upper_offset;
  std::vector<std::int64_t> rows = {band.row_begin, band.row_end};
  if (band.row_end - band.row_begin <= kMostSteps) {
    rows.clear();
    for (std::int64_t row = band.row_begin; row <= band.row_end; ++row) rows.push_back(row);
    return rows;
  }
  for (const std::int64_t turn :
       {band.lower_slope ? lower : band.row_begin, band.upper_slope ? upper : band.row_begin}) {
    if (turn > band.row_begin && turn < band.row_end) rows.push_back(turn);
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

// Returns the outline of a band: down its right edge, up its left one. Between two turns of many
// rows the steps of a pair each are drawn as a straight line.
std::string outline(const math::Band& band, const Frame& frame) {
  const std::vector<std::int64_t> rows = turns_of(band);
  std::string down;
  std::string up;
  for (std::size_t i = 0; i + 1 < rows.size(); ++i) {
    const std::int64_t first = rows[i];
    const std::int64_t last = rows[i + 1] - 1;
    const double y0 = frame.y(first);
    const double y1 = frame.y(last + 1);
    down += fmt::format("{}{:.2f} {:.2f}L{:.2f} {:.2f}", i == 0 ? "M" : "L",
                        frame.x(band.end(first)), y0, frame.x(band.end(last)), y1);
    up = fmt::format("L{:.2f} {:.2f}L{:.2f} {:.2f}", frame.x(band.begin(last)), y1,
                     frame.x(band.begin(first)), y0) +
         up;
  }
  return down + up + "Z";
}

// The stroke shows bands that are thinner than a pixel.
std::string draw_bands(const MaskPicture& picture, const Frame& frame) {
  std::string path;
  for (const math::Band& band : bands_of_head(picture.mask, picture.head))
    path += outline(band, frame);
  return path.empty()
             ? ""
             : fmt::format("<path fill=\"{0}\" stroke=\"{0}\" stroke-width=\"0.7\" d=\"{1}\"/>\n",
                           kVisible, path);
}

// Draws the borders of the tiles, if they are not too dense to see.
std::string draw_grid(const MaskPicture& picture, const Frame& frame) {
  const auto wide = [](double side, std::int64_t tile, std::int64_t length) {
    return length > 0 && side * static_cast<double>(tile) / static_cast<double>(length) >= 4;
  };
  std::string path;
  if (wide(frame.width, picture.tile.keys, frame.keys)) {
    for (std::int64_t key = picture.tile.keys; key < frame.keys; key += picture.tile.keys)
      path += fmt::format("M{:.2f} {:.2f}v{:.2f}", frame.x(key), frame.top, frame.height);
  }
  if (wide(frame.height, picture.tile.rows, frame.rows)) {
    for (std::int64_t row = picture.tile.rows; row < frame.rows; row += picture.tile.rows)
      path += fmt::format("M{:.2f} {:.2f}h{:.2f}", frame.left, frame.y(row), frame.width);
  }
  return path.empty() ? ""
                      : fmt::format("<path stroke=\"{}\" stroke-width=\"0.8\" d=\"{}\"/>\n",
                                    kTileBorder, path);
}

// Draws the mask. Full tiles cover the outlines of bands, which they are part of.
std::string draw_mask(const MaskPicture& picture, const Frame& frame) {
  if (picture.runs.size() + picture.mask.bands.size() > kMostParts) {
    throw UsageError(
        fmt::format("--plot: the mask has {} slices and {} runs of tiles, must be at most {} in "
                    "all; larger tiles (--tile) have fewer",
                    picture.mask.bands.size(), picture.runs.size(), kMostParts));
  }
  const double right = frame.left + frame.width;
  const double bottom = frame.top + frame.height;
  std::string svg =
      rectangle(frame.left, frame.top, right, bottom, fmt::format("fill=\"{}\"", kEmpty).c_str());
  svg += draw_runs(picture, frame, TileClass::kPartial, kMasked);
  svg += draw_bands(picture, frame);
  svg += draw_runs(picture, frame, TileClass::kFull, kFull);
  svg += draw_grid(picture, frame);
  return svg + rectangle(frame.left, frame.top, right, bottom,
                         fmt::format("fill=\"none\" stroke=\"{}\"", kFrame).c_str());
}

// Returns the numbers to label on an axis: 0, multiples of a power of two or of 1, 2 or 5 times a
// power of ten, and the length.
std::vector<std::int64_t> ticks(std::int64_t length, double pixels) {
  const auto most = std::max<std::int64_t>(static_cast<std::int64_t>(pixels / 70), 1);
  std::int64_t step = 1;
  if (length % 64 == 0) {
    while (length / step > most) step *= 2;
  } else {
    for (int i = 0; length / step > most; ++i) step = i % 3 == 1 ? step / 2 * 5 : step * 2;
  }
  std::vector<std::int64_t> numbers;
  for (std::int64_t number = 0; number < length; number += step) numbers.push_back(number);
  if (numbers.size() > 1 &&
      static_cast<double>(length - numbers.back()) < 56.0 / pixels * static_cast<double>(length)) {
    numbers.pop_back();
  }
  numbers.push_back(length);
  return numbers;
}

std::string draw_axes(const Frame& frame) {
  std::string svg;
  for (const std::int64_t key : ticks(frame.keys, frame.width)) {
    svg += fmt::format("<path stroke=\"{}\" d=\"M{:.2f} {:.2f}v-5\"/>\n", kFrame, frame.x(key),
                       frame.top);
    svg += text_at(frame.x(key), frame.top - 10, "middle", 13, kInk, fmt::format("{}", key));
  }
  for (const std::int64_t row : ticks(frame.rows, frame.height)) {
    svg += fmt::format("<path stroke=\"{}\" d=\"M{:.2f} {:.2f}h-5\"/>\n", kFrame, frame.left,
                       frame.y(row));
    svg += text_at(frame.left - 10, frame.y(row) + 4.5, "end", 13, kInk, fmt::format("{}", row));
  }
  svg += text_at(frame.left + frame.width / 2, frame.top - 30, "middle", 14, kInk, "key",
                 " font-weight=\"600\"");
  const double middle = frame.top + frame.height / 2;
  return svg +
         text_at(26, middle, "middle", 14, kInk, "query",
                 fmt::format(" font-weight=\"600\" transform=\"rotate(-90 26 {:.1f})\"", middle)
                     .c_str());
}

std::string draw_legend(const TileCounts& counts, double top) {
  const struct {
    const char* color;
    std::string text;
  } entries[] = {
      {kFull, fmt::format("visible, in {} full tiles", counts.full_tiles)},
      {kVisible, fmt::format("visible, in {} partial tiles", counts.partial_tiles)},
      {kMasked, "masked, in partial tiles: visited"},
      {kEmpty, fmt::format("{} empty tiles: skipped",
                           counts.tiles - counts.full_tiles - counts.partial_tiles)},
  };
  std::string svg;
  for (int i = 0; i < 4; ++i) {
    const double x = kLeft + (i % 2) * 320;
    const double y = top + 26 + (i / 2) * 28;
    svg += rectangle(
        x, y, x + 22, y + 16,
        fmt::format("fill=\"{}\" stroke=\"{}\" stroke-width=\"0.6\"", entries[i].color, kFrame)
            .c_str());
    svg += text_at(x + 32, y + 13, "start", 14, kInk, entries[i].text);
  }
  return svg;
}

double percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::string mask_svg(const MaskPicture& picture) {
  const Frame frame = frame_of(picture, kLeft, kTop, kMostWidth, kMostHeight);
  const TileCounts& counts = picture.counts;
  std::string svg = svg_begin(kWidth, frame.top + frame.height + kLegendHeight);
  svg += text_at(kMargin, 36, "start", 20, kInk,
                 fmt::format("{} queries x {} keys{}", frame.rows, frame.keys,
                             picture.mask.heads > 1 ? fmt::format(", head {}", picture.head) : ""),
                 " font-weight=\"700\"");
  svg += text_at(
      kMargin, 62, "start", 14, kFaint,
      fmt::format("tiles of {} x {}: {:.1f} % of the pairs visible, {:.1f} % visited, "
                  "{:.1f} % skipped",
                  picture.tile.rows, picture.tile.keys, percent(counts.visible_pairs, counts.pairs),
                  percent(counts.visited_pairs, counts.pairs),
                  percent(counts.pairs - counts.visited_pairs, counts.pairs)));
  svg += draw_mask(picture, frame);
  svg += draw_axes(frame);
  svg += draw_legend(counts, frame.top + frame.height);
  return svg + "</svg>\n";
}

std::string bare_mask_svg(const MaskPicture& picture) {
  const Frame frame = frame_of(picture, 1, 1, kBareWidth - 2, kBareWidth - 2);
  return svg_begin(frame.width + 2, frame.height + 2) + draw_mask(picture, frame) + "</svg>\n";
}

}  // namespace tilewise::cli
