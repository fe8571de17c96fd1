// Cuts a worker's scratch memory into arrays. The same code first counts (base nullptr) and then
// places.
#pragma once

#include "math/config.h"

namespace tilewise::cpu::TILEWISE_TARGET {

class Arena {
 public:
  TILEWISE_INLINE explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  template <class T>
  TILEWISE_INLINE T* take(std::int64_t count) {
    T* const array = base_ != nullptr ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(count, static_cast<std::int64_t>(sizeof(T)), &bytes) ||
        __builtin_add_overflow(bytes, kLine - 1, &bytes) ||
        __builtin_add_overflow(used_, bytes / kLine * kLine, &used_)) {
      overflow_ = true;
    }
    return array;
  }
  // Bytes taken, or -1 if they exceed int64.
  TILEWISE_INLINE std::int64_t used() const { return overflow_ ? -1 : used_; }

 private:
  static constexpr std::int64_t kLine = 64;  // of the cache: workers never share one
  char* base_;
  std::int64_t used_ = 0;
  bool overflow_ = false;
};

}  // namespace tilewise::cpu::TILEWISE_TARGET
