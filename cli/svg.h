// The code that charts share: colors of text, and text as SVG.
#pragma once

#include <string>

namespace tilewise::cli {

inline constexpr const char* kInk = "#24292f";
inline constexpr const char* kFaint = "#6e7781";
inline constexpr const char* kGrid = "#dde1e6";

// Returns the text with <, > and & as entities.
std::string escaped(const std::string& text);

// Returns a text element at (x, y), in pixels; `anchor` is start, middle or end, and `extra` holds
// more attributes.
std::string text_at(double x, double y, const char* anchor, double size, const char* color,
                    const std::string& text, const char* extra = "");

// Returns the start of an SVG with a white background.
std::string svg_begin(double width, double height);

}  // namespace tilewise::cli
