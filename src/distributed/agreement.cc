#include "distributed/agreement.h"

#include <new>

#include "problem/tensor_checks.h"

namespace tilewise::distributed {

Status refuse(const tilewise_communicator& communicator, double timeout_seconds, Status status) {
  Fingerprint print;
  print[Field::kStatus] = static_cast<std::uint64_t>(status);
  try {
    // Fingerprints hold integers only, which the memory of a vector is aligned for.
    std::vector<char> scratch(static_cast<std::size_t>(comparison_bytes(communicator.size)));
    return compare_problems(communicator, print, timeout_seconds, scratch.data());
  } catch (const std::bad_alloc&) {
    communicator.abort(communicator.self);
    return status;
  }
}

Status Agreement::reach(const tilewise_communicator& communicator, const Fingerprint& print,
                        double timeout_seconds) {
  Hash hash;
  for (const std::uint64_t value : print.values) hash.add(value);
  hash.add(reinterpret_cast<std::uintptr_t>(communicator.self));
  if (last_.load(std::memory_order_relaxed) == hash.value()) return TILEWISE_OK;
  try {
    // Fingerprints hold integers only, which the memory of a vector is aligned for.
    std::vector<char> scratch(static_cast<std::size_t>(comparison_bytes(communicator.size)));
    TILEWISE_RETURN_IF_ERROR(
        compare_problems(communicator, print, timeout_seconds, scratch.data()));
  } catch (const std::bad_alloc&) {
    communicator.abort(communicator.self);
    return problem::fail(TILEWISE_NO_MEMORY, "no memory for the comparison of %d ranks",
                         communicator.size);
  }
  last_.store(hash.value(), std::memory_order_relaxed);
  return TILEWISE_OK;
}

}  // namespace tilewise::distributed
