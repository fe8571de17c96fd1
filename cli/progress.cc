#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "execution.h"

namespace tilewise::cli {
namespace {

constexpr double kPatience = 1.0;  // seconds until the bar appears
constexpr std::int64_t kWidth = 30;

}  // namespace

Progress::Progress(std::int64_t steps, bool quiet)
    : steps_(steps), start_(now_seconds()), visible_(!quiet && isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);  // does not throw if the terminal is gone
  std::fflush(stderr);
}

void Progress::step(const std::string& what) {
  ++done_;
  if (!visible_ || now_seconds() - start_ < kPatience) return;
  const std::int64_t filled = kWidth * done_ / (steps_ > 0 ? steps_ : 1);
  const std::string bar(static_cast<std::size_t>(filled), '#');
  fmt::print(stderr, "\r\033[K[{:<{}}] {:3d}%  {}", bar, kWidth, 100 * done_ / steps_,
             what.substr(0, 40));
  std::fflush(stderr);
  shown_ = true;
}

}  // namespace tilewise::cli
