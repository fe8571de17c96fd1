// Calls on parts (docs/semantics.md) for kernels that compute whole problems only: a kernel writes
// its results to the workspace, in the dtype of sums, and a kernel after it merges them into the
// caller's.
#pragma once

#include "cuda/host/device.h"
#include "problem/arena.h"
#include "problem/kernel.h"

namespace tilewise::cuda::parts {

using problem::Problem;

// Refuses what no kernel but the reference takes of a problem with `parts`.
Status check_parts(const Problem& problem);

// The problem that a kernel computes for one with `accumulate`: its outputs are contiguous arrays
// of the workspace. Any other problem stays as it is, and takes no workspace.
class Results {
 public:
  // Without a workspace the arrays have no memory.
  explicit Results(const Problem& problem, void* workspace = nullptr);

  const Problem& part() const { return part_; }
  std::int64_t bytes() const { return bytes_; }  // -1 if they exceed int64

 private:
  void place_forward(problem::Arena& arena);
  void place_backward(problem::Arena& arena);

  Problem part_;
  std::int64_t bytes_ = 0;
};

// Loads the kernels of merge() on the current device.
cudaError_t load_merge();

// Merges the results of a part into those of `problem`, which accumulates, on the stream. Forward
// merges out and lse as states of the softmax, backward adds gradients.
cudaError_t merge(const Problem& problem, const Problem& part, cudaStream_t stream);

}  // namespace tilewise::cuda::parts
