#include "cuda/emulation/device_memory.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

namespace tilewise::emulation {
namespace {

constexpr std::align_val_t kAlignment{256};  // as cudaMalloc gives
constexpr int kPoison = 0xFF;

struct Allocations {
  std::mutex mutex;
  std::map<std::uintptr_t, std::size_t> sizes;  // by address
};

Allocations& allocations() {
  static Allocations all;
  return all;
}

}  // namespace

void* allocate(std::size_t bytes) {
  void* const memory = ::operator new(bytes, kAlignment, std::nothrow);
  if (memory == nullptr) return nullptr;
  std::memset(memory, kPoison, bytes);
  const std::lock_guard<std::mutex> lock(allocations().mutex);
  allocations().sizes[reinterpret_cast<std::uintptr_t>(memory)] = bytes;
  return memory;
}

bool release(void* memory) {
  {
    const std::lock_guard<std::mutex> lock(allocations().mutex);
    if (allocations().sizes.erase(reinterpret_cast<std::uintptr_t>(memory)) == 0) return false;
  }
  ::operator delete(memory, kAlignment);
  return true;
}

bool is_device_memory(const void* memory, std::size_t bytes) {
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(memory);
  const std::lock_guard<std::mutex> lock(allocations().mutex);
  auto next = allocations().sizes.upper_bound(first);
  if (next == allocations().sizes.begin()) return false;
  const auto& [begin, size] = *--next;
  return first + bytes <= begin + size;
}

}  // namespace tilewise::emulation
