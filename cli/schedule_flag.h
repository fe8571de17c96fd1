// The flag --schedule: which tokens a rank holds.
#pragma once

#include <tilewise/tilewise_distributed.h>

#include <string>

#include "flags.h"

namespace tilewise::cli {

// For --help: the names that --schedule takes besides `none`.
inline constexpr const char* kScheduleNames = "contiguous|zigzag|striped|balanced";

// Returns TILEWISE_SCHEDULE_...; 0 if the flag is not given or is `none`. "ring" also means
// contiguous and "magi" balanced: RingAttention and MagiAttention.
std::int32_t schedule_flag(const Flags& flags, const std::string& none);

}  // namespace tilewise::cli
