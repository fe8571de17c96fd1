#include "timeline_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "format.h"
#include "svg.h"

namespace tilewise::cli {
namespace {

using distributed::simulation::RankTimeline;
using distributed::simulation::Span;
using distributed::simulation::Step;

// The geometry, in pixels.
constexpr double kWidth = 1120;
constexpr double kMargin = 24;
constexpr double kNameWidth = 70;
constexpr double kBytesWidth = 90;
constexpr double kTitleHeight = 84;
constexpr double kPanelHeader = 34;
constexpr double kPanelFooter = 16;
constexpr double kAxisHeight = 40;
constexpr double kRankHeight = 24;
constexpr double kComputeHeight = 11;
constexpr double kLinkHeight = 5;
constexpr std::int64_t kMostRanks = 16;
constexpr double kLeft = kMargin + kNameWidth;
constexpr double kRight = kWidth - kMargin - kBytesWidth;

// Steps alternate between two shades, so that their borders show.
constexpr const char* kCompute[] = {"#d9480f", "#f08c5a"};
constexpr const char* kCast[] = {"#1c6dd0", "#74a9e8"};
constexpr const char* kReduce[] = {"#2b8a3e", "#7bc48a"};

struct TimeAxis {
  double seconds;
  double place(double time) const { return kLeft + time / seconds * (kRight - kLeft); }
  // A step of 1, 2 or 5 times a power of ten with four to ten ticks.
  double tick() const {
    const double power = std::pow(10, std::floor(std::log10(seconds / 4)));
    for (const double factor : {5.0, 2.0}) {
      if (factor * power <= seconds / 4) return factor * power;
    }
    return power;
  }
};

std::string bar(const TimeAxis& axis, const Span& span, double top, double height,
                const char* color, const std::string& text) {
  const double left = axis.place(span.begin);
  const double width = std::max(axis.place(span.end) - left, 0.3);
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"{}\">"
      "<title>{}</title></rect>\n",
      left, top, width, height, color, escaped(text));
}

// The data of a lane: its spans, its look, and the text of a step.
struct Lane {
  const std::vector<Span>& spans;
  const char* const (&colors)[2];
  double top;
  double height;
};

// Draws the steps of a lane. Steps of less than a pixel are joined to one bar if no gap of a pixel
// is between them.
template <class Text>
std::string draw_lane(const TimeAxis& axis, const Lane& lane, Text text) {
  const double pixel = axis.seconds / (kRight - kLeft);
  std::string svg;
  for (std::size_t first = 0; first < lane.spans.size();) {
    Span joined = lane.spans[first];
    std::size_t next = first + 1;
    while (next < lane.spans.size() && joined.end - joined.begin < 2 * pixel &&
           lane.spans[next].begin - joined.end < pixel &&
           lane.spans[next].end - lane.spans[next].begin < pixel) {
      joined.end = std::max(joined.end, lane.spans[next++].end);
    }
    if (joined.end > joined.begin) {
      svg += bar(axis, joined, lane.top, lane.height, lane.colors[first % 2], text(first));
    }
    first = next;
  }
  return svg;
}

std::string draw_rank(const SimulatedSchedule& schedule, std::int64_t rank, const TimeAxis& axis,
                      double top) {
  const RankTimeline& timeline = schedule.timeline.ranks[static_cast<std::size_t>(rank)];
  const auto step = [&](std::size_t s) -> const Step& {
    return schedule.work.at(rank, static_cast<std::int64_t>(s));
  };
  const auto exchange = [&](std::size_t s, const char* what, double row_bytes, bool back) {
    const double in = row_bytes * static_cast<double>(step(s).received_rows);
    const double out = row_bytes * static_cast<double>(step(s).sent_rows);
    return fmt::format("rank {}, step {}: receives {} of {}, sends {}", rank, s,
                       format_bytes(back ? out : in), what, format_bytes(back ? in : out));
  };
  const double link = top + kComputeHeight + 1;
  std::string svg = text_at(kLeft - 8, top + 10, "end", 11, kInk, fmt::format("rank {}", rank));
  svg += draw_lane(axis, {timeline.compute, kCompute, top, kComputeHeight}, [&](std::size_t s) {
    return fmt::format("rank {}, step {}: computes for {}", rank, s,
                       format_seconds(timeline.compute[s].end - timeline.compute[s].begin));
  });
  svg += draw_lane(axis, {timeline.cast, kCast, link, kLinkHeight}, [&](std::size_t s) {
    return exchange(s, "keys and values", schedule.row_bytes, false);
  });
  svg += draw_lane(axis, {timeline.reduce, kReduce, link, kLinkHeight}, [&](std::size_t s) {
    return exchange(s, "dK and dV", schedule.gradient_bytes, true);
  });
  const double received =
      (schedule.row_bytes) * static_cast<double>(schedule.work.sum(rank, &Step::received_rows));
  return svg + text_at(kWidth - kMargin, top + 10, "end", 11, kFaint, format_bytes(received));
}

// The ranks that are drawn: all, or the first, the last and some between them.
std::vector<std::int64_t> drawn_ranks(std::int64_t ranks) {
  const std::int64_t count = std::min(ranks, kMostRanks);
  std::vector<std::int64_t> drawn;
  for (std::int64_t i = 0; i < count; ++i) {
    drawn.push_back(count == 1 ? 0 : i * (ranks - 1) / (count - 1));
  }
  return drawn;
}

std::string draw_panel(const SimulatedSchedule& schedule, const TimeAxis& axis, double top) {
  const std::vector<std::int64_t> ranks = drawn_ranks(schedule.work.ranks);
  const double bottom = top + kPanelHeader + kRankHeight * static_cast<double>(ranks.size());
  std::string svg =
      text_at(kMargin, top + 14, "start", 15, kInk,
              distributed::schedule_name(schedule.work.schedule), " font-weight=\"600\"");
  svg += text_at(
      kLeft + 16, top + 14, "start", 12.5, kInk,
      fmt::format("{}, efficiency {:.1f} %, {} {}", format_seconds(schedule.timeline.seconds),
                  100 * schedule.timeline.efficiency(), schedule.work.steps,
                  schedule.work.steps == 1 ? "step" : "steps"));
  svg += text_at(kWidth - kMargin, top + 14, "end", 11, kFaint, "received");
  for (double tick = 0; tick <= axis.seconds * 1.0001; tick += axis.tick()) {
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\"/>\n",
        axis.place(tick), top + kPanelHeader - 8, bottom, kGrid);
  }
  double y = top + kPanelHeader;
  for (const std::int64_t rank : ranks) {
    svg += draw_rank(schedule, rank, axis, y);
    y += kRankHeight;
  }
  return svg;
}

std::string draw_legend(bool backward) {
  const struct {
    const char* color;
    const char* text;
  } entries[] = {{kCompute[0], "computes (shades alternate from step to step)"},
                 {kCast[0], "receives and sends keys and values"},
                 {kReduce[0], "receives and sends dK and dV"}};
  std::string svg;
  double x = kMargin;
  for (const auto& entry : entries) {
    if (&entry == &entries[2] && !backward) break;
    svg += fmt::format("<rect x=\"{:.0f}\" y=\"62\" width=\"14\" height=\"9\" fill=\"{}\"/>\n", x,
                       entry.color);
    svg += text_at(x + 20, 71, "start", 12, kInk, entry.text);
    x += &entry == &entries[0] ? 320 : 260;
  }
  return svg;
}

double panel_height(const SimulatedSchedule& schedule) {
  const auto ranks = static_cast<double>(drawn_ranks(schedule.work.ranks).size());
  return kPanelHeader + kRankHeight * ranks + kPanelFooter;
}

}  // namespace

std::string timeline_svg(const std::string& title, const std::string& subtitle,
                         const std::vector<SimulatedSchedule>& schedules) {
  TimeAxis axis = {0};
  double height = kTitleHeight + kAxisHeight;
  bool backward = false;
  for (const SimulatedSchedule& schedule : schedules) {
    axis.seconds = std::max(axis.seconds, schedule.timeline.seconds);
    height += panel_height(schedule);
    backward = backward || schedule.gradient_bytes > 0;
  }
  if (!(axis.seconds > 0)) axis.seconds = 1;
  std::string svg = svg_begin(kWidth, height);
  svg += text_at(kMargin, 30, "start", 19, kInk, title, " font-weight=\"700\"");
  svg += text_at(kMargin, 50, "start", 12.5, kFaint, subtitle);
  svg += draw_legend(backward);
  double top = kTitleHeight + 10;
  for (const SimulatedSchedule& schedule : schedules) {
    svg += draw_panel(schedule, axis, top);
    top += panel_height(schedule);
  }
  for (double tick = 0; tick <= axis.seconds * 1.0001; tick += axis.tick()) {
    svg += text_at(axis.place(tick), top + 4, "middle", 10.5, kFaint,
                   tick == 0 ? "0" : format_seconds(tick));
  }
  return svg + "</svg>\n";
}

}  // namespace tilewise::cli
