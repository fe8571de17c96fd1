// cp.async: copies that land when the thread waits for them, no earlier.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cuda/emulation/block.h"

namespace tilewise::emulation {

// Of a block: the copies of each thread that have not landed, in order.
struct CopyQueue {
  struct Copy {
    unsigned char* to;
    const void* from;  // nullptr: zeros
    std::uint32_t bytes;
    int group;
  };
  std::vector<Copy> copies;
  int group = 0;  // that the next copy belongs to
};
using CopyQueues = std::array<CopyQueue, kMostThreads>;

// ---- of the thread that runs ----

// `bytes` (4 or 16) from `from` (nullptr: zeros) to shared memory, where there is poison() until
// they land: neither what was there nor what comes is what a read before that may count on.
void begin_copy(std::uint32_t to, const void* from, std::uint32_t bytes);

// The copies since the last call become a group.
void cp_async_commit();

// All groups land but the last `groups`.
void cp_async_wait(int groups);

}  // namespace tilewise::emulation
