// Cuts a workspace into arrays. Without memory it only adds up: the same function then says how
// much is needed.
#pragma once

#include "problem/checked.h"
#include "problem/kernel.h"

namespace tilewise::reference {

using problem::Checked;

class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  // An array of `count` elements, aligned to kWorkspaceAlignment; its content is garbage. nullptr
  // without memory.
  template <class Element>
  Element* take(Checked count) {
    constexpr std::int64_t kAlignment = problem::kWorkspaceAlignment;
    Element* array = base_ == nullptr ? nullptr : reinterpret_cast<Element*>(base_ + used_.value);
    const Checked bytes = count * Checked{sizeof(Element)} + Checked{kAlignment - 1};
    used_ = used_ + Checked{bytes.value - bytes.value % kAlignment, bytes.valid};
    return array;
  }

  Checked used() const { return used_; }

 private:
  char* base_;
  Checked used_;
};

}  // namespace tilewise::reference
