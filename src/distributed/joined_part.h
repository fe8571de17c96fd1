// A sequence's part of several ranges of queries and of keys at once, whose rows lie one after the
// other in the tensors of a call. Under a causal zigzag schedule every step is one call: that of a
// rank's own keys has an ordinary causal mask, and in the others rows see all keys or none.
#pragma once

#include <span>

#include "distributed/whole.h"

namespace tilewise::distributed {

struct JoinedPart {
  std::int64_t q_begin = 0;  // rows of the joined ranges
  std::int64_t q_end = 0;
  std::int64_t k_begin = 0;
  std::int64_t k_end = 0;
  std::int64_t reach = 0;  // row i of the part sees its keys below i + reach,
  bool is_band = true;     // if one such edge is the mask of all rows

  std::int64_t rows() const { return q_end - q_begin; }
  std::int64_t keys() const { return k_end - k_begin; }
  bool sees_keys() const { return rows() > 0 && keys() > 0 && rows() - 1 + reach > 0; }
  bool is_full() const { return reach >= keys(); }
};

// The ranges are ascending, have the stride 1 and no tokens in common; the whole has no left
// window.
JoinedPart join_parts(const Whole& whole, const problem::Sequence& sequence,
                      std::span<const TokenRange> queries, std::span<const TokenRange> keys);

}  // namespace tilewise::distributed
