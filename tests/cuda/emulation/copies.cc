#include "cuda/emulation/copies.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda/emulation/block.h"
#include "cuda/emulation/memory.h"
#include "cuda_runtime.h"

namespace tilewise::emulation {
namespace {

struct Copy {
  unsigned char* to;
  const void* from;  // nullptr: zeros
  std::uint32_t bytes;
  int group;
};

// Of a thread.
struct Queue {
  std::vector<Copy> copies;  // that have not landed, in order
  int group = 0;             // that the next copy belongs to
};

Queue queues[kMostThreads];

}  // namespace

void begin_copy(std::uint32_t to, const void* from, std::uint32_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(from) % bytes != 0)
    fail("cp.async: %p is no multiple of %u", from, bytes);
  if (from != nullptr && !is_device_memory(from, bytes))
    fail("cp.async: %u bytes at %p are not memory of the device", bytes, from);
  Queue& queue = queues[threadIdx.x];
  unsigned char* const place = from_shared(to, bytes, "cp.async");
  std::memset(place, poison(), bytes);
  queue.copies.push_back({place, from, bytes, queue.group});
}

void commit_copies() { ++queues[threadIdx.x].group; }

void wait_copies(int groups) {
  Queue& queue = queues[threadIdx.x];
  const auto stays = [&](const Copy& copy) { return copy.group >= queue.group - groups; };
  const auto last = std::find_if(queue.copies.begin(), queue.copies.end(), stays);
  for (auto copy = queue.copies.begin(); copy != last; ++copy) {
    if (copy->from == nullptr) {
      std::memset(copy->to, 0, copy->bytes);
    } else {
      std::memcpy(copy->to, copy->from, copy->bytes);
    }
  }
  queue.copies.erase(queue.copies.begin(), last);
}

void drop_copies() {
  for (Queue& queue : queues) queue = {};
}

}  // namespace tilewise::emulation
