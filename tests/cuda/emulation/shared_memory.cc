#include "cuda/emulation/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "cuda/emulation/block.h"
#include "math/integer.h"

namespace tilewise::emulation {
namespace {

constexpr std::size_t kGuardBytes = 1024;
constexpr int kGuard = 0xA5;
constexpr std::size_t kAlignment = 1024;

}  // namespace

void SharedMemory::begin(std::size_t bytes) {
  bytes_ = bytes;
  memory_.resize(bytes + 3 * kGuardBytes);
  void* first = memory_.data() + kGuardBytes;
  std::size_t space = bytes + 2 * kGuardBytes;
  data_ = static_cast<unsigned char*>(std::align(kAlignment, bytes + kGuardBytes, first, space));
  std::memset(memory_.data(), kGuard, memory_.size());
  std::memset(data_, poison(), bytes);
  async_.assign(bytes, static_cast<unsigned char>(poison()));
  segments_.assign(math::ceil_div(bytes, kSegmentBytes), {});
  fenced_ = false;
}

bool SharedMemory::intact() const {
  const auto is_guard = [](unsigned char byte) { return byte == kGuard; };
  const unsigned char* const end = data_ + bytes_;
  return std::all_of(memory_.data(), static_cast<const unsigned char*>(data_), is_guard) &&
         std::all_of(end, memory_.data() + memory_.size(), is_guard);
}

std::uint32_t SharedMemory::address_of(const void* pointer) const {
  const std::ptrdiff_t offset = static_cast<const unsigned char*>(pointer) - data_;
  if (offset < 0 || offset >= static_cast<std::ptrdiff_t>(bytes_))
    fail("%p is not in dynamic shared memory", pointer);
  return kBase + static_cast<std::uint32_t>(offset);
}

void SharedMemory::check(std::uint32_t address, std::uint32_t bytes, const char* what) const {
  if (address < kBase || std::size_t{address} - kBase + bytes > bytes_)
    fail("%s: address %u is outside of shared memory", what, address);
}

unsigned char* SharedMemory::at(std::uint32_t address, std::uint32_t bytes, const char* what) {
  if (address % bytes != 0) fail("%s: address %u is no multiple of %u", what, address, bytes);
  check(address, bytes, what);
  return data_ + (address - kBase);
}

const unsigned char* SharedMemory::async_at(std::uint32_t address, std::uint32_t bytes,
                                            const char* what) {
  check(address, bytes, what);
  return async_.data() + (address - kBase);
}

void SharedMemory::begin_copy(std::uint32_t address, std::uint32_t bytes) {
  check(address, bytes, "cp.async.bulk.tensor");
  std::memset(data_ + (address - kBase), poison(), bytes);
  std::memset(async_.data() + (address - kBase), poison(), bytes);
  for (std::uint32_t p = segment_of(address); p <= segment_of(address + bytes - 1); ++p) {
    ++segments_[p].changes;
    ++segments_[p].pending_copies;
  }
}

void SharedMemory::end_copy(std::uint32_t address, std::uint32_t bytes) {
  for (std::uint32_t p = segment_of(address); p <= segment_of(address + bytes - 1); ++p) {
    ++segments_[p].changes;
    --segments_[p].pending_copies;
  }
}

void SharedMemory::write_async(std::uint32_t address, const void* from, std::uint32_t bytes) {
  std::memcpy(data_ + (address - kBase), from, bytes);
  std::memcpy(async_.data() + (address - kBase), from, bytes);
}

bool SharedMemory::is_visible_to_async_proxy(std::uint32_t address, std::uint32_t bytes) {
  meet();
  return std::memcmp(data_ + (address - kBase), async_.data() + (address - kBase), bytes) == 0;
}

void SharedMemory::publish() {
  fenced_ = false;
  for (std::size_t p = 0; p < segments_.size(); ++p) {
    const std::size_t first = p * kSegmentBytes;
    const std::size_t count = std::min<std::size_t>(kSegmentBytes, bytes_ - first);
    if (std::memcmp(async_.data() + first, data_ + first, count) == 0) continue;
    std::memcpy(async_.data() + first, data_ + first, count);
    ++segments_[p].changes;
  }
}

}  // namespace tilewise::emulation
