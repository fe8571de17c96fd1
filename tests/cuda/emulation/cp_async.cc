#include "cuda/emulation/cp_async.h"

#include <algorithm>
#include <cstring>

#include "cuda/emulation/device_memory.h"
#include "cuda/emulation/machine.h"
#include "cuda/emulation/work.h"

namespace tilewise::emulation {
namespace {

CpAsyncQueue& own_queue() { return block().cp_async[threadIdx.x]; }

}  // namespace

void begin_copy(std::uint32_t to, const void* from, std::uint32_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(from) % bytes != 0)
    fail("cp.async: %p is no multiple of %u", from, bytes);
  if (from != nullptr && !is_device_memory(from, bytes))
    fail("cp.async: %u bytes at %p are not memory of the device", bytes, from);
  CpAsyncQueue& queue = own_queue();
  unsigned char* const destination = from_shared(to, bytes, "cp.async");
  record_access(destination, bytes, Access::kWrite);
  std::memset(destination, poison(), bytes);
  if (from != nullptr) work.copied_bytes += bytes;
  queue.copies.push_back({destination, from, bytes, queue.group});
}

void cp_async_commit() { ++own_queue().group; }

void cp_async_wait(int groups) {
  CpAsyncQueue& queue = own_queue();
  const auto is_later = [&](const CpAsyncQueue::Copy& copy) {
    return copy.group >= queue.group - groups;
  };
  const auto last = std::find_if(queue.copies.begin(), queue.copies.end(), is_later);
  for (auto copy = queue.copies.begin(); copy != last; ++copy) {
    record_access(copy->to, copy->bytes, Access::kWrite);
    if (copy->from == nullptr) {
      std::memset(copy->to, 0, copy->bytes);
    } else {
      std::memcpy(copy->to, copy->from, copy->bytes);
    }
  }
  queue.copies.erase(queue.copies.begin(), last);
}

}  // namespace tilewise::emulation
