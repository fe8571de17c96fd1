// Several ranks that train one model together: processes of MPI, or threads. Each holds a part of
// the tokens of every sequence. Only attention (ring attention of the library), the loss and the
// gradients need the other ranks.
#pragma once

#include <cstdint>
#include <tilewise/tilewise_distributed.hpp>
#include <vector>

namespace gpt {

// One of the ranks.
class Ranks {
 public:
  explicit Ranks(const tilewise_communicator& communicator) : communicator_(communicator) {}

  std::int32_t rank() const { return communicator_.rank; }
  std::int32_t size() const { return communicator_.size; }
  const tilewise_communicator& communicator() const { return communicator_; }

  // Zigzag gives every rank the same work under a causal mask.
  static constexpr tilewise::Schedule kSchedule = tilewise::Schedule::kZigzag;

  // Returns the positions that this rank holds of a sequence.
  std::vector<std::int64_t> positions(std::int64_t length) const {
    return tilewise::tokens_of(kSchedule, length, size(), rank());
  }

  // Replaces the values by their sums over all ranks, in the order of the ranks: all of them get
  // the same bits. Throws tilewise::Error if a rank has failed.
  template <class T>
  void sum(std::vector<T>& values) const;

 private:
  tilewise_communicator communicator_;
};

}  // namespace gpt
