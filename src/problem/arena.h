// An arena cuts a workspace into arrays. Without memory it only adds up sizes, so the same function
// also computes the size of the workspace.
#pragma once

#include "math/config.h"
#include "math/integer.h"
#include "problem/checked.h"

namespace tilewise::problem {

// in bytes: a cache line, so that workers never share one
inline constexpr std::size_t kWorkspaceAlignment = 64;

class Arena {
 public:
  TILEWISE_INLINE explicit Arena(void* base = nullptr) : base_(static_cast<char*>(base)) {}

  // Returns the offset of `bytes` more bytes, a multiple of kWorkspaceAlignment.
  TILEWISE_INLINE Checked reserve(Checked bytes) {
    constexpr std::int64_t kAlignment = kWorkspaceAlignment;
    const Checked offset = used_;
    const Checked end = bytes + Checked{kAlignment - 1};
    used_ = used_ + Checked{end.value - end.value % kAlignment, end.valid};
    return offset;
  }

  // Returns an array of `count` elements, aligned to kWorkspaceAlignment, with undefined content;
  // nullptr without memory.
  template <class Element>
  TILEWISE_INLINE Element* take(Checked count) {
    const Checked offset = reserve(count * Checked{sizeof(Element)});
    return base_ == nullptr ? nullptr : reinterpret_cast<Element*>(base_ + offset.value);
  }
  template <class Element>
  TILEWISE_INLINE Element* take(std::int64_t count) {
    return take<Element>(Checked{count});
  }

  TILEWISE_INLINE Checked used() const { return used_; }
  // Returns the used size as a number, or -1 if it exceeds int64.
  TILEWISE_INLINE std::int64_t bytes() const { return used_.valid ? used_.value : -1; }

 private:
  char* base_;
  Checked used_;
};

}  // namespace tilewise::problem
