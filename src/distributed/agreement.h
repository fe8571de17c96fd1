// The ranks' agreement that their problems are the same.
#pragma once

#include <atomic>
#include <vector>

#include "distributed/fingerprint.h"

namespace tilewise::distributed {

// Takes part in the comparison with the status of this rank, which has refused its problem; the
// thread's message remains. Returns that status.
Status refuse(const tilewise_communicator& communicator, double timeout_seconds, Status status);

// The agreement of the ranks in an earlier run of a plan for tensors of a device. There a
// comparison waits for the messages before it, so it is made only if something has changed.
class Agreement {
 public:
  // Compares the problems of the ranks, as compare_problems() does, unless the last comparison of
  // this plan was of the same ones. All ranks decide alike if they run the same plans in the same
  // order; if not, the exchange that follows fails.
  Status reach(const tilewise_communicator& communicator, const Fingerprint& print,
               double timeout_seconds);

 private:
  std::atomic<std::uint64_t> last_{0};  // the hash of the last comparison; 0: there was none
};

}  // namespace tilewise::distributed
