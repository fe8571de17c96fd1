// Charts as SVG, written by hand: rows of dots on logarithmic axes.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace tilewise::cli {

struct ChartRow {
  std::string name;
  double value = NAN;   // NaN: only the text "not measured" is drawn; 0: only its text
  double marker = NAN;  // a second value, drawn as a ring
  bool highlighted = false;
};

struct Chart {
  std::string title;
  std::string marker_name;  // the meaning of the rings; "" if there are none
  double tick_step = 10;    // ratio of two neighbouring ticks
  std::function<std::string(double)> format;
  std::vector<ChartRow> rows;
};

// Returns an SVG of charts in two columns under a title and a line of text.
std::string plot_svg(const std::string& title, const std::string& subtitle,
                     const std::vector<Chart>& charts);

}  // namespace tilewise::cli
