// cp.async: copies that land when the thread waits for them, no earlier.
#pragma once

#include <cstdint>

namespace tilewise::emulation {

// ---- of the thread that runs ----

// `bytes` (4 or 16) from `from` (nullptr: zeros) to shared memory, where there is poison() until
// they land: neither what was there nor what comes is what a read before that may count on.
void begin_copy(std::uint32_t to, const void* from, std::uint32_t bytes);

// The copies since the last call become a group.
void commit_copies();

// All groups land but the last `groups`.
void wait_copies(int groups);

// ---- of the block ----

// Forgets what has not landed.
void drop_copies();

}  // namespace tilewise::emulation
