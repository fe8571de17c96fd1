#include "plot.h"

#include <fmt/format.h>

#include <algorithm>

#include "svg.h"

namespace tilewise::cli {
namespace {

// The geometry, in pixels.
constexpr double kPanelWidth = 470;
constexpr double kNameWidth = 125;
constexpr double kValueWidth = 85;
constexpr double kRowHeight = 24;
constexpr double kPanelHeader = 34;
constexpr double kPanelFooter = 44;
constexpr double kMargin = 24;
constexpr double kTitleHeight = 64;

constexpr const char* kPlain = "#7a8ca3";
constexpr const char* kHighlight = "#d9480f";

// Returns the label of a tick: "1.00 ms" becomes "1 ms".
std::string tick_text(const Chart& chart, double tick) {
  const std::string text = chart.format(tick);
  const std::size_t point = text.find('.');
  if (point == std::string::npos || text.find('e') != std::string::npos) return text;
  const std::size_t end = text.find_first_not_of(".0", point);
  return end == std::string::npos || text[end] == ' '
             ? text.substr(0, point) + (end == std::string::npos ? "" : text.substr(end))
             : text;
}

// A logarithmic axis whose ends are whole powers of `step`.
class Axis {
 public:
  Axis(const Chart& chart, double left, double right) : left_(left), right_(right) {
    double low = HUGE_VAL;
    double high = 0;
    for (const ChartRow& row : chart.rows) {
      for (const double value : {row.value, row.marker}) {
        if (!(value > 0) || !std::isfinite(value)) continue;
        low = std::min(low, value);
        high = std::max(high, value);
      }
    }
    if (high == 0) low = high = 1;
    step_ = std::log(chart.tick_step);
    first_ = static_cast<int>(std::floor(std::log(low) / step_));
    last_ = std::max(first_ + 1, static_cast<int>(std::ceil(std::log(high) / step_)));
  }

  double place(double value) const {
    const double position = (std::log(value) / step_ - first_) / (last_ - first_);
    return left_ + position * (right_ - left_);
  }
  // Returns the ticks to label, at most six.
  std::vector<double> ticks() const {
    const int stride = (last_ - first_ + 5) / 6;
    std::vector<double> values;
    for (int i = first_; i <= last_; i += std::max(stride, 1))
      values.push_back(std::exp(step_ * i));
    return values;
  }

 private:
  double left_;
  double right_;
  double step_;
  int first_;
  int last_;
};

std::string draw_row(const Chart& chart, const ChartRow& row, const Axis& axis, double left,
                     double y) {
  const char* const color = row.highlighted ? kHighlight : kPlain;
  const double start = left + kNameWidth;
  const double text_y = y + 4;
  std::string svg = text_at(start - 10, text_y, "end", 12.5, kInk, row.name);
  const double value_x = left + kPanelWidth - 4;
  if (std::isnan(row.value)) {
    return svg + text_at(value_x, text_y, "end", 11.5, kFaint, "not measured");
  }
  if (row.value > 0) {
    const double x = axis.place(row.value);
    svg += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
        "stroke-width=\"2\" stroke-opacity=\"0.55\"/>\n",
        start, y, x, y, color);
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" fill=\"{}\"/>\n", x, y, color);
  }
  if (row.marker > 0) {
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"8\" fill=\"none\" stroke=\"{}\" "
        "stroke-width=\"1.5\"/>\n",
        axis.place(row.marker), y, kInk);
  }
  return svg + text_at(value_x, text_y, "end", 12, kInk, chart.format(row.value));
}

std::string draw_chart(const Chart& chart, double left, double top) {
  const double bottom = top + kPanelHeader + kRowHeight * static_cast<double>(chart.rows.size());
  const Axis axis(chart, left + kNameWidth, left + kPanelWidth - kValueWidth);
  std::string svg = text_at(left, top + 14, "start", 15, kInk, chart.title, " font-weight=\"600\"");
  for (const double tick : axis.ticks()) {
    const double x = axis.place(tick);
    svg += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x,
        top + kPanelHeader - 8, x, bottom, kGrid);
    svg += text_at(x, bottom + 15, "middle", 10.5, kFaint, tick_text(chart, tick));
  }
  double y = top + kPanelHeader + kRowHeight / 2 - 4;
  for (const ChartRow& row : chart.rows) {
    svg += draw_row(chart, row, axis, left, y);
    y += kRowHeight;
  }
  if (!chart.marker_name.empty()) {
    svg += text_at(left + kNameWidth, bottom + 32, "start", 11, kFaint,
                   "dot: counted, ring: " + chart.marker_name);
  }
  return svg;
}

}  // namespace

std::string plot_svg(const std::string& title, const std::string& subtitle,
                     const std::vector<Chart>& charts) {
  std::size_t most_rows = 0;
  for (const Chart& chart : charts) most_rows = std::max(most_rows, chart.rows.size());
  const double panel = kPanelHeader + kRowHeight * static_cast<double>(most_rows) + kPanelFooter;
  const double width = 2 * kPanelWidth + 3 * kMargin;
  const std::size_t lines = (charts.size() + 1) / 2;
  const double height = kTitleHeight + static_cast<double>(lines) * panel + kMargin;
  std::string svg = svg_begin(width, height);
  svg += text_at(kMargin, 30, "start", 19, kInk, title, " font-weight=\"700\"");
  svg += text_at(kMargin, 50, "start", 12.5, kFaint, subtitle);
  const double legend = width - kMargin;
  svg += text_at(legend, 30, "end", 12.5, kHighlight, "cpu: the library's kernels");
  svg += text_at(legend, 50, "end", 12.5, kPlain, "the ladder: textbook algorithms");
  for (std::size_t i = 0; i < charts.size(); ++i) {
    const double left = kMargin + static_cast<double>(i % 2) * (kPanelWidth + kMargin);
    const double top = kTitleHeight + 10 + static_cast<double>(i / 2) * panel;
    svg += draw_chart(charts[i], left, top);
  }
  return svg + "</svg>\n";
}

}  // namespace tilewise::cli
