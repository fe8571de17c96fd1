// A whole problem divided between ranks: each rank's tensors are cut from those of the whole, run
// on a thread of their own, and put together again, all through the C interface.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "distributed/ranks.h"
#include "problem/kernel.h"
#include "verify/case.h"
#include "verify/tensor.h"

namespace tilewise::tests {

using problem::Operation;

struct RankedSetup {
  std::int32_t size = 1;
  std::int32_t schedule = TILEWISE_SCHEDULE_CONTIGUOUS;  // balanced: by the token plan of the mask
  double timeout_seconds = 60;
  const tilewise_executor* executor = nullptr;
  std::int64_t chunk_rows = 0;  // of the token plan
  std::int64_t stages = 0;
  // With devices (size), the tensors of rank r are on CUDA device devices[r].
  std::vector<std::int32_t> devices = {};
  // The communicator of a rank, if not that of a group of threads.
  std::function<tilewise_communicator(std::int32_t rank)> communicator = {};
  // Makes what stands between a rank and its communicator; nothing by default.
  std::function<std::unique_ptr<Wrapper>(const tilewise_communicator&)> wrap = {};
};

class RankedRun {
 public:
  // `whole` must outlive this object; its outputs are not used.
  RankedRun(const tilewise_problem& whole, const RankedSetup& setup);

  // Runs the operation on all ranks; backward reads what forward wrote. Returns their outcomes.
  std::vector<Outcome> run(Operation operation);

  // Runs one rank on another communicator; the other ranks run elsewhere.
  Outcome run_one(std::int32_t rank, Operation operation,
                  const tilewise_communicator& communicator);

  // Returns the problem of a rank with the outputs that it should have: those of `whole`.
  tilewise_problem expected(std::int32_t rank, const tilewise_problem& whole);

  // The outputs of the operations that have run, of the whole.
  const tilewise_problem& results() const { return results_; }

  // The problem of a rank; a test may change it.
  tilewise_problem& local(std::int32_t rank) {
    return ranks_[static_cast<std::size_t>(rank)].problem;
  }
  Wrapper* wrapper(std::int32_t rank) {
    return ranks_[static_cast<std::size_t>(rank)].wrapper.get();
  }
  const tilewise_distributed_info& info(std::int32_t rank) const {
    return ranks_[static_cast<std::size_t>(rank)].info;
  }
  const tilewise_communicator& communicator(std::int32_t rank) const {
    return ranks_[static_cast<std::size_t>(rank)].communicator;
  }
  tilewise_distributed_options options() const;
  const tilewise_token_plan* token_plan() const { return token_plan_.get(); }  // if balanced

  // Uses given out and lse for backward.
  void set_forward_results(const tilewise_problem& whole);

 private:
  using Tokens = std::vector<std::int64_t>;
  struct Rank {
    Tokens queries;
    Tokens keys;
    tilewise_problem problem;
    verify::TensorOwner owner;
    std::vector<std::unique_ptr<verify::Memory>> bytes;
    std::unique_ptr<Wrapper> wrapper;
    tilewise_communicator communicator;
    tilewise_distributed_info info;
  };

  void make_token_plan();
  Tokens tokens_of(bool keys, std::int32_t rank) const;
  void make_rank(std::int32_t number);
  void cut_all(Rank& rank, const tilewise_problem& whole, tilewise_problem& part);
  tilewise_tensor cut(Rank& rank, const tilewise_tensor& tensor, int dimension,
                      const Tokens& tokens);
  void make_outputs(Rank& rank);
  Outcome run_rank(Rank& rank, Operation operation);
  Status run_on_device(Rank& rank, Operation operation, std::int32_t device);
  void collect(Operation operation);

  tilewise_problem whole_;  // without the mask if the token plan has it
  RankedSetup setup_;
  std::unique_ptr<tilewise_token_plan, void (*)(tilewise_token_plan*)> token_plan_ = {
      nullptr, tilewise_token_plan_destroy};
  distributed::LocalGroup group_;
  std::vector<Rank> ranks_;
  verify::TensorOwner owner_;
  tilewise_problem results_;
};

// Returns the largest |a - b| / max(1, |b|) of two tensors; infinity if they differ in what is not
// finite.
double largest_difference(const tilewise_tensor& a, const tilewise_tensor& b);

// Expects that the outputs of an operation agree within a relative difference.
void expect_equal_results(Operation operation, const tilewise_problem& got,
                          const tilewise_problem& expected, double limit, const std::string& what);

// Runs both operations on all ranks; backward reads the results of forward. False if a rank fails.
bool run_both(RankedRun& ranks, const std::string& what);

// Expects the results of the oracle from both operations of an fp64 case: every option is exact.
void expect_exact(verify::Case c, const RankedSetup& setup);

// Expects the accuracy rule of one device. `orders`: how many sums of plain attention it reads.
void expect_accurate(verify::Case c, Operation operation, const RankedSetup& setup, int orders);

// Returns a small random case that a ring supports: any mask but slices, any option.
verify::Case random_ring_case(std::int32_t dtype, std::int32_t schedule, verify::Random& random);

// Returns one that the balanced schedule supports: slices, documents, causal masks and windows.
verify::Case random_balanced_case(std::int32_t dtype, verify::Random& random);

// Returns one that the schedule supports.
verify::Case random_ranked_case(std::int32_t dtype, std::int32_t schedule, verify::Random& random);

}  // namespace tilewise::tests
