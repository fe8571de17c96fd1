// The tokens of a problem that one rank holds, in memory of their own.
#pragma once

#include <tilewise/tilewise_distributed.h>

#include <cstddef>
#include <vector>

#include "problem/problem.h"

namespace tilewise::cli {

// The positions in the whole of the tokens that a rank holds, in the order of its rows.
struct Tokens {
  std::vector<std::int64_t> queries;
  std::vector<std::int64_t> keys;
};

class Shard {
 public:
  // Copies the rank's tokens of the whole, whose outputs must be there.
  Shard(const tilewise_problem& whole, Tokens tokens);
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  const tilewise_problem& problem() const { return problem_; }

  // The bytes of the operation's outputs, one after the other as messages to another rank.
  std::vector<tilewise_message> output_messages(problem::Operation operation, std::int32_t peer);

  // Copies the operation's outputs to their rows of the whole.
  void put(problem::Operation operation, const tilewise_problem& whole) const;

 private:
  using Member = tilewise_tensor tilewise_problem::*;
  struct Part {
    Member member;
    int dimension;  // of the tokens; -1: all ranks have the same tensor
    bool of_keys;
  };

  const std::vector<std::int64_t>& tokens(const Part& part) const {
    return part.of_keys ? tokens_.keys : tokens_.queries;
  }
  void find_parts();
  void cut(const tilewise_problem& whole, const Part& part);

  tilewise_problem problem_;
  std::vector<Part> parts_;
  Tokens tokens_;
  std::vector<std::vector<std::byte>> memory_;
};

// Returns the number of rows of the query side and of the key side.
std::int64_t query_rows(const tilewise_problem& problem);
std::int64_t key_rows(const tilewise_problem& problem);

}  // namespace tilewise::cli
