#include "schedule_flag.h"

namespace tilewise::cli {

std::int32_t schedule_flag(const Flags& flags, const std::string& none) {
  static constexpr std::int32_t kMeanings[] = {
      TILEWISE_SCHEDULE_AUTOMATIC, TILEWISE_SCHEDULE_CONTIGUOUS, TILEWISE_SCHEDULE_ZIGZAG,
      TILEWISE_SCHEDULE_STRIPED,   TILEWISE_SCHEDULE_BALANCED,   TILEWISE_SCHEDULE_CONTIGUOUS,
      TILEWISE_SCHEDULE_BALANCED};
  return kMeanings[flags.choice(
      "schedule", {none, "contiguous", "zigzag", "striped", "balanced", "ring", "magi"})];
}

}  // namespace tilewise::cli
