#include "cuda/emulation/copies.h"

#include <algorithm>
#include <cstring>

#include "cuda/emulation/machine.h"
#include "cuda/emulation/memory.h"

namespace tilewise::emulation {
namespace {

CopyQueue& own_queue() { return block().copies[threadIdx.x]; }

}  // namespace

void begin_copy(std::uint32_t to, const void* from, std::uint32_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(from) % bytes != 0)
    fail("cp.async: %p is no multiple of %u", from, bytes);
  if (from != nullptr && !is_device_memory(from, bytes))
    fail("cp.async: %u bytes at %p are not memory of the device", bytes, from);
  CopyQueue& queue = own_queue();
  unsigned char* const place = from_shared(to, bytes, "cp.async");
  std::memset(place, poison(), bytes);
  queue.copies.push_back({place, from, bytes, queue.group});
}

void cp_async_commit() { ++own_queue().group; }

void cp_async_wait(int groups) {
  CopyQueue& queue = own_queue();
  const auto stays = [&](const CopyQueue::Copy& copy) {
    return copy.group >= queue.group - groups;
  };
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

}  // namespace tilewise::emulation
