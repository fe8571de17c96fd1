// A whole request as several calls, each with a part of the queries and a part of the keys, whose
// results accumulate to those of the whole.
#pragma once

#include <deque>
#include <vector>

#include "problem/problem.h"
#include "problem/sequence.h"

namespace tilewise::verify {

class PartCalls {
 public:
  // Cuts the rows and the keys of every sequence at the same places (ascending, those after its end
  // have no effect). There is a call for each pair of a piece of queries and one of keys, in an
  // order that `seed` draws; so is the piece of keys that each piece of queries gets the sink with.
  // The tensors of the whole must outlive this object and may not include slices. Throws
  // std::runtime_error if the library refuses the whole.
  PartCalls(problem::Operation operation, const tilewise_problem& whole,
            const std::vector<std::int64_t>& q_cuts, const std::vector<std::int64_t>& k_cuts,
            std::uint64_t seed);

  const std::vector<tilewise_problem>& calls() const { return calls_; }

  // Sets the outputs of the whole to what the first call must find: no result. The output of empty
  // rows stays as it is.
  void start() const;

 private:
  void add_call(math::KeyRange rows, math::KeyRange keys, bool has_sink);
  tilewise_tensor list(const std::vector<std::int64_t>& numbers, std::int64_t columns);

  problem::Operation operation_;
  tilewise_problem whole_;
  problem::Problem problem_;
  std::vector<problem::Sequence> sequences_;
  std::deque<std::vector<std::int64_t>> numbers_;  // of the lists that calls read
  std::vector<tilewise_problem> calls_;
};

}  // namespace tilewise::verify
