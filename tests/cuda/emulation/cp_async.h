// cp.async: copies land when the thread waits for them, not earlier.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cuda/emulation/block.h"

namespace tilewise::emulation {

// The copies of a thread that have not landed, in order.
struct CpAsyncQueue {
  struct Copy {
    unsigned char* to;
    const void* from;  // nullptr: zeros
    std::uint32_t bytes;
    int group;
  };
  std::vector<Copy> copies;
  int group = 0;  // of the next copy
};
using CpAsyncQueues = std::array<CpAsyncQueue, kMaxThreads>;

// ---- called by the running thread ----

// Starts a copy of `bytes` (4 or 16) from `from` (nullptr: zeros) to shared memory. Until it lands
// there is poison(): a thread that reads too early gets neither the old nor the new contents.
void begin_copy(std::uint32_t to, const void* from, std::uint32_t bytes);

// The copies since the last call become a group.
void cp_async_commit();

// Lands all groups but the last `groups`.
void cp_async_wait(int groups);

}  // namespace tilewise::emulation
