// The comparison of problems: before anything else is sent, every rank learns whether all ranks
// pass the same problem, and which one does not.
#pragma once

#include <tilewise/tilewise_distributed.h>

#include <array>

#include "distributed/whole.h"

namespace tilewise::distributed {

// The properties that have to be equal on all ranks.
enum class Field : std::size_t {
  kStatus,  // TILEWISE_OK, or why the rank has refused its problem
  kOperation,
  kSchedule,
  kQLen,
  kKLen,
  kDtype,
  kBatch,
  kHeads,
  kKvHeads,
  kHeadDim,
  kValueDim,
  kQPacked,
  kKPacked,
  kWindowLeft,
  kWindowRight,
  kTopLeft,
  kScale,
  kSoftcap,
  kDropoutP,
  kDropoutSeed,
  kDropoutOffset,
  kBias,
  kMask,
  kDK,
  kDV,
  kDSink,
  kDAlibiSlopes,
  kCuSeqlensQ,
  kCuSeqlensK,
  kSeqUsedQ,
  kSeqUsedK,
  kAlibiSlopes,
  kSink,
  kPlan,  // a hash of the plan of a slice list (magi/), 0 for a ring
  kCount
};

// FNV-1a over numbers (Fowler, Noll and Vo).
class Hash {
 public:
  void add(std::uint64_t number) {
    for (int byte = 0; byte < 8; ++byte, number >>= 8)
      state_ = (state_ ^ (number & 0xFF)) * 0x100000001B3u;
  }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0xCBF29CE484222325u;
};

struct Fingerprint {
  std::array<std::uint64_t, static_cast<std::size_t>(Field::kCount)> values = {};

  std::uint64_t& operator[](Field field) { return values[static_cast<std::size_t>(field)]; }
  std::uint64_t operator[](Field field) const { return values[static_cast<std::size_t>(field)]; }
};

// Returns the fingerprint of a whole problem; `local` is that of this rank, with its data. Contents
// of cu_seqlens, seqused, slopes and sinks are read and hashed, unless they are on a device.
Fingerprint fingerprint_of(const problem::Problem& local, Schedule schedule, Lengths lengths);

// Sets the hashes of cu_seqlens and seqused to those of a problem on the CPU.
void set_lists(const problem::Problem& problem, Fingerprint* print);

// Returns the hash of the lists that decide what is sent.
std::uint64_t hash_of_lists(const problem::Problem& local);

// Bytes of host memory that compare_problems() needs for a group of `size` ranks.
std::int64_t comparison_bytes(std::int32_t size);

// Sends the fingerprint to every rank and receives theirs. All ranks return the same verdict:
// TILEWISE_OK, or TILEWISE_INVALID_ARGUMENT with a message that names the first rank that has
// refused its problem, or whose problem differs from that of most ranks, and the difference. A rank
// whose own status is not TILEWISE_OK returns that, and leaves its message as it is.
Status compare_problems(const tilewise_communicator& communicator, const Fingerprint& own,
                        double timeout_seconds, void* scratch);

}  // namespace tilewise::distributed
