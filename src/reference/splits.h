// The splits into which Flash-Decoding cuts the keys of a sequence.
#pragma once

#include "math/integer.h"
#include "math/mask_rule.h"

namespace tilewise::reference {

// At most so many splits, each of at least so many keys. A GPU takes as many splits as keep it
// busy; here the number follows the length alone.
inline constexpr std::int64_t kMostSplits = 16;
inline constexpr std::int64_t kLeastSplitKeys = 8;

struct Splits {
  std::int64_t keys_of_split;
  std::int64_t count;
  std::int64_t k_len;

  math::KeyRange keys(std::int64_t split) const {
    return {split * keys_of_split, math::min((split + 1) * keys_of_split, k_len)};
  }
};

inline Splits splits_of(std::int64_t k_len) {
  const std::int64_t keys = math::max(kLeastSplitKeys, math::ceil_div(k_len, kMostSplits));
  return {keys, math::ceil_div(k_len, keys), k_len};
}

}  // namespace tilewise::reference
