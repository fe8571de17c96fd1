// Shared by the benchmarks of attention on ranks: causal documents, how ranks divide them, and the
// tensors of a shard.
#pragma once

#include <cstdint>
#include <optional>
#include <tilewise/masks.hpp>
#include <tilewise/tilewise_distributed.hpp>
#include <vector>

namespace tilewise::bench {

// The pairs (query, key) that a causal mask shows. starts: of the documents, and the end of the
// last one.
inline double causal_pairs(const std::vector<std::int64_t>& starts) {
  double pairs = 0;
  for (std::size_t i = 1; i < starts.size(); ++i) {
    const auto rows = static_cast<double>(starts[i] - starts[i - 1]);
    pairs += rows * (rows + 1) / 2;
  }
  return pairs;
}

// The tokens of causal documents, divided among ranks.
class Division {
 public:
  Division(Schedule schedule, const std::vector<std::int64_t>& starts, std::int32_t ranks)
      : ranks_(ranks) {
    options_.q_len = options_.k_len = starts.back();
    options_.schedule = schedule;
    if (schedule != Schedule::kBalanced) return;
    const masks::Slices slices = masks::documents(starts, {.causal = true});
    Problem mask;
    mask.slices = masks::tensor(slices);
    plan_.emplace(mask, TokenPlanOptions{starts.back(), starts.back(), ranks, 0, 0});
  }

  // The options are those of this division while it lives.
  DistributedOptions options() const {
    DistributedOptions options = options_;
    if (plan_) options.token_plan = &*plan_;
    return options;
  }

  std::int64_t rows(std::int32_t rank) const {
    if (plan_) return plan_->info_of(rank).q_rows;
    return static_cast<std::int64_t>(
        tokens_of(options_.schedule, options_.q_len, ranks_, rank).size());
  }

 private:
  std::int32_t ranks_;
  DistributedOptions options_;
  std::optional<TokenPlan> plan_;
};

// Sets the tensors of both passes to rows_of(heads), but for LSE.
template <class RowsOf>
void set_rows(Problem& problem, std::int64_t heads, std::int64_t kv_heads, const RowsOf& rows_of) {
  problem.q = rows_of(heads);
  problem.k = rows_of(kv_heads);
  problem.v = rows_of(kv_heads);
  problem.out = rows_of(heads);
  problem.dout = rows_of(heads);
  problem.dq = rows_of(heads);
  problem.dk = rows_of(kv_heads);
  problem.dv = rows_of(kv_heads);
}

}  // namespace tilewise::bench
