// Masks for tests: random lists, the families that MagiAttention names, and matrices of booleans
// that say what a list shows without any code of src/.
#pragma once

#include <string>
#include <vector>

#include "distributed/magi/mask.h"
#include "verify/random.h"

namespace tilewise::tests {

using distributed::magi::Mask;
using distributed::magi::Slice;

// (heads, q_len, k_len): what a list of slices shows, by the definition of docs/semantics.md.
class BooleanMask {
 public:
  BooleanMask(std::int64_t heads, std::int64_t q_len, std::int64_t k_len)
      : heads_(heads),
        q_len_(q_len),
        k_len_(k_len),
        cells_(static_cast<std::size_t>(heads * q_len * k_len)) {}
  void show(const std::vector<Slice>& slices);
  char& at(std::int64_t head, std::int64_t q, std::int64_t k) {
    return cells_[static_cast<std::size_t>((head * q_len_ + q) * k_len_ + k)];
  }
  std::int64_t area(std::int64_t q_begin, std::int64_t q_end);
  bool operator==(const BooleanMask& other) const { return cells_ == other.cells_; }

 private:
  std::int64_t heads_;
  std::int64_t q_len_;
  std::int64_t k_len_;
  std::vector<char> cells_;
};

struct SliceList {
  std::int64_t q_len;
  std::int64_t k_len;
  std::int64_t heads;
  std::vector<Slice> slices;

  Mask mask() const;
  BooleanMask cells() const;
  std::string text() const;
};

// Overlapping slices of all kinds, up to `most` of them, some empty, some for a single head.
SliceList random_slices(verify::Random& random, std::int64_t most, std::int64_t longest);

struct Family {
  std::string name;
  SliceList list;
};

// Full, causal, documents, causal documents, block-causal documents, window, shared question,
// global and window; of `tokens` tokens.
std::vector<Family> mask_families(std::int64_t tokens, verify::Random& random);

}  // namespace tilewise::tests
