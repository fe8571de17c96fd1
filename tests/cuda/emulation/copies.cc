#include "cuda/emulation/copies.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda/emulation/block.h"
#include "cuda/emulation/memory.h"
#include "cuda_runtime.h"

namespace tilewise::emulation {
namespace {

constexpr std::uint32_t kChunkBytes = 16;

struct Copy {
  unsigned char* to;
  const void* from;  // nullptr: zeros
  int group;
};

// Of a thread.
struct Queue {
  std::vector<Copy> copies;  // that have not landed, in order
  int group = 0;             // that the next copy belongs to
};

Queue queues[kMostThreads];

}  // namespace

void begin_copy(std::uint32_t to, const void* from) {
  if (reinterpret_cast<std::uintptr_t>(from) % kChunkBytes != 0)
    fail("cp.async: %p is no multiple of 16", from);
  if (from != nullptr && !is_device_memory(from, kChunkBytes))
    fail("cp.async: 16 bytes at %p are not memory of the device", from);
  Queue& queue = queues[threadIdx.x];
  unsigned char* const place = from_shared(to, kChunkBytes, "cp.async");
  std::memset(place, poison(), kChunkBytes);
  queue.copies.push_back({place, from, queue.group});
}

void commit_copies() { ++queues[threadIdx.x].group; }

void wait_copies(int groups) {
  Queue& queue = queues[threadIdx.x];
  const auto stays = [&](const Copy& copy) { return copy.group >= queue.group - groups; };
  const auto last = std::find_if(queue.copies.begin(), queue.copies.end(), stays);
  for (auto copy = queue.copies.begin(); copy != last; ++copy) {
    if (copy->from == nullptr) {
      std::memset(copy->to, 0, kChunkBytes);
    } else {
      std::memcpy(copy->to, copy->from, kChunkBytes);
    }
  }
  queue.copies.erase(queue.copies.begin(), last);
}

void drop_copies() {
  for (Queue& queue : queues) queue = {};
}

}  // namespace tilewise::emulation
