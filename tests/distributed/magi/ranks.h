// Runs attention over ranks that are threads of the test, on a whole problem that it divides.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "distributed/local_group.h"
#include "distributed/magi/attention.h"
#include "plan/pool.h"
#include "problem/status.h"
#include "problem/tensors.h"
#include "verify/case.h"
#include "verify/tensor.h"

namespace tilewise::tests {

// The tensors of one rank: contiguous copies of its rows; outputs are NaN.
class RankTensors {
 public:
  RankTensors(problem::Operation operation, const tilewise_problem& whole,
              const distributed::magi::Plan& plan, std::int32_t rank);
  // Copies the outputs of the operation into those of the whole.
  void gather(problem::Operation operation, const tilewise_problem& whole) const;

  tilewise_problem problem;

 private:
  using Member = tilewise_tensor tilewise_problem::*;
  // The rows of a tensor of the whole that the rank has; nullptr: it has all of it.
  const std::vector<std::int64_t>* rows_of(Member member) const;
  void copy(Member member, const tilewise_problem& whole, bool from_whole) const;

  std::vector<std::int64_t> q_rows_;
  std::vector<std::int64_t> k_rows_;
  verify::TensorOwner owner_;
};

// Makes the plan of a case's slices.
distributed::magi::Plan plan_of(const verify::Case& description,
                                const distributed::magi::PlanOptions& options);

struct Sent {
  std::atomic<std::int64_t> bytes = 0;
  std::atomic<std::int64_t> messages = 0;
  Sent& operator=(const Sent&) {
    bytes = messages = 0;
    return *this;
  }
};

// Divides the whole, runs every rank, and gathers the outputs. `overlaps`: whether the
// communicators may be called from a thread of their own. What is sent is added to `sent`.
void run_ranks(problem::Operation operation, const tilewise_problem& whole,
               const distributed::magi::Plan& plan, bool overlaps, Sent* sent = nullptr);

}  // namespace tilewise::tests
