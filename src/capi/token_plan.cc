// The C interface of token plans.
#include "capi/token_plan.h"

#include <cstring>
#include <memory>

#include "capi/exceptions.h"
#include "capi/structs.h"
#include "distributed/magi/problem_mask.h"
#include "distributed/magi/rank_plan.h"
#include "distributed/magi/shard.h"
#include "problem/tensor_checks.h"

namespace magi = tilewise::distributed::magi;

using tilewise::capi::check_struct;
using tilewise::problem::fail;
using tilewise::problem::printable;
using tilewise::problem::Status;

namespace {

constexpr std::int32_t kMostPlannedRanks = 65536;

std::size_t index(std::int64_t number) { return static_cast<std::size_t>(number); }

Status check_options(const tilewise_token_plan_options& options) {
  if (options.size >= 1 && options.size <= kMostPlannedRanks) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "size: is %d, must be 1 to %d", options.size,
              kMostPlannedRanks);
}

tilewise_token_plan::Ranges ranges_of(const std::vector<magi::Ranges>& shards) {
  tilewise_token_plan::Ranges result;
  for (const magi::Ranges& shard : shards) {
    result.emplace_back();
    for (const magi::Range& range : shard) result.back().push_back({range.begin, range.end, 1});
  }
  return result;
}

std::vector<std::int64_t> sent_rows_of(const magi::Plan& plan) {
  std::vector<std::int64_t> rows(index(plan.ranks));
  for (const magi::Ranges& remote : plan.remote_keys) {
    magi::for_each_owner(plan, remote,
                         [&](std::int32_t owner, std::int64_t begin, std::int64_t end) {
                           rows[index(owner)] += end - begin;
                         });
  }
  return rows;
}

Status check_rank(const tilewise_token_plan* plan, std::int32_t rank) {
  if (plan == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "plan: is NULL");
  if (rank >= 0 && rank < plan->plan.ranks) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "rank: is %d, must be 0 to %lld", rank,
              printable(plan->plan.ranks - 1));
}

// Sets `shard` to the tokens of a side that a rank holds.
Status find_shard(const tilewise_token_plan* plan, std::int32_t side, std::int32_t rank,
                  const magi::Ranges** shard) {
  TILEWISE_RETURN_IF_ERROR(check_rank(plan, rank));
  if (side != TILEWISE_QUERIES && side != TILEWISE_KEYS) {
    return fail(TILEWISE_INVALID_ARGUMENT, "side: is %d, must be 0 (queries) or 1 (keys)", side);
  }
  *shard = &(side == TILEWISE_QUERIES ? plan->plan.queries : plan->plan.keys)[index(rank)];
  return TILEWISE_OK;
}

Status check_copy(const magi::Ranges& shard, const void* whole, std::int64_t row_bytes,
                  const void* rows) {
  if (row_bytes < 0) {
    return fail(TILEWISE_INVALID_ARGUMENT, "row_bytes: is %lld, must be >= 0",
                printable(row_bytes));
  }
  const bool copies = !shard.empty() && row_bytes > 0;
  if (copies && (whole == nullptr || rows == nullptr))
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: is NULL", whole == nullptr ? "whole" : "rows");
  return TILEWISE_OK;
}

template <class Struct>
void init(Struct* pointer) {
  if (pointer == nullptr) return;
  std::memset(pointer, 0, sizeof(*pointer));
  pointer->struct_size = sizeof(*pointer);
}

}  // namespace

void tilewise_token_plan_options_init(tilewise_token_plan_options* options) {
  init(options);
  if (options != nullptr) options->size = 1;
}

tilewise_status tilewise_token_plan_create(const tilewise_problem* mask,
                                           const tilewise_token_plan_options* options,
                                           tilewise_token_plan** plan) {
  if (plan == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "plan: is NULL");
  TILEWISE_RETURN_IF_ERROR(check_struct("problem", mask));
  TILEWISE_RETURN_IF_ERROR(check_struct("token_plan_options", options));
  TILEWISE_RETURN_IF_ERROR(check_options(*options));
  return tilewise::capi::without_exceptions("a token plan", [&] {
    auto made = std::make_unique<tilewise_token_plan>();
    magi::Mask read;
    TILEWISE_RETURN_IF_ERROR(magi::mask_of_problem(*mask, {options->q_len, options->k_len}, &read));
    magi::PlanOptions chosen;
    chosen.ranks = options->size;
    chosen.chunk_rows = options->chunk_rows;
    chosen.stages = options->stages;
    TILEWISE_RETURN_IF_ERROR(magi::make_plan(read, chosen, &made->plan));
    made->ranges[TILEWISE_QUERIES] = ranges_of(made->plan.queries);
    made->ranges[TILEWISE_KEYS] = ranges_of(made->plan.keys);
    made->sent_rows = sent_rows_of(made->plan);
    *plan = made.release();
    return Status{TILEWISE_OK};
  });
}

void tilewise_token_plan_destroy(tilewise_token_plan* plan) { delete plan; }

void tilewise_token_plan_info_init(tilewise_token_plan_info* info) { init(info); }
void tilewise_token_plan_rank_info_init(tilewise_token_plan_rank_info* info) { init(info); }

tilewise_status tilewise_token_plan_describe(const tilewise_token_plan* plan,
                                             tilewise_token_plan_info* info) {
  if (plan == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "plan: is NULL");
  TILEWISE_RETURN_IF_ERROR(check_struct("token_plan_info", info));
  const magi::Plan& made = plan->plan;
  info->q_len = made.mask.q_len;
  info->k_len = made.mask.k_len;
  info->chunk_rows = made.chunk_rows;
  info->stages = made.stages;
  info->area = made.area;
  info->largest_area = made.largest_area();
  info->area_lower_bound = made.area_lower_bound;
  info->received_rows = made.remote_rows();
  info->imbalance = made.imbalance();
  info->size = static_cast<std::int32_t>(made.ranks);
  return TILEWISE_OK;
}

tilewise_status tilewise_token_plan_describe_rank(const tilewise_token_plan* plan,
                                                  std::int32_t rank,
                                                  tilewise_token_plan_rank_info* info) {
  TILEWISE_RETURN_IF_ERROR(check_rank(plan, rank));
  TILEWISE_RETURN_IF_ERROR(check_struct("token_plan_rank_info", info));
  const magi::Plan& made = plan->plan;
  info->q_rows = magi::row_count(made.queries[index(rank)]);
  info->k_rows = magi::row_count(made.keys[index(rank)]);
  info->area = made.area_of_rank[index(rank)];
  info->sent_rows = plan->sent_rows[index(rank)];
  info->received_rows = made.remote_rows(rank);
  return TILEWISE_OK;
}

tilewise_status tilewise_token_plan_ranges(const tilewise_token_plan* plan, std::int32_t side,
                                           std::int32_t rank, const tilewise_token_range** ranges,
                                           std::int64_t* count) {
  const magi::Ranges* shard = nullptr;
  TILEWISE_RETURN_IF_ERROR(find_shard(plan, side, rank, &shard));
  if (ranges == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "ranges: is NULL");
  if (count == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "count: is NULL");
  const std::vector<tilewise_token_range>& own = plan->ranges[side][index(rank)];
  *ranges = own.data();
  *count = static_cast<std::int64_t>(own.size());
  return TILEWISE_OK;
}

tilewise_status tilewise_token_plan_positions(const tilewise_token_plan* plan, std::int32_t side,
                                              std::int32_t rank, std::int64_t* positions) {
  const magi::Ranges* shard = nullptr;
  TILEWISE_RETURN_IF_ERROR(find_shard(plan, side, rank, &shard));
  if (positions == nullptr && !shard->empty())
    return fail(TILEWISE_INVALID_ARGUMENT, "positions: is NULL");
  magi::write_positions(*shard, positions);
  return TILEWISE_OK;
}

tilewise_status tilewise_token_plan_dispatch(const tilewise_token_plan* plan, std::int32_t side,
                                             std::int32_t rank, const void* whole,
                                             std::int64_t row_bytes, void* rows) {
  const magi::Ranges* shard = nullptr;
  TILEWISE_RETURN_IF_ERROR(find_shard(plan, side, rank, &shard));
  TILEWISE_RETURN_IF_ERROR(check_copy(*shard, whole, row_bytes, rows));
  if (row_bytes > 0) magi::dispatch(*shard, whole, row_bytes, rows);
  return TILEWISE_OK;
}

tilewise_status tilewise_token_plan_undispatch(const tilewise_token_plan* plan, std::int32_t side,
                                               std::int32_t rank, const void* rows,
                                               std::int64_t row_bytes, void* whole) {
  const magi::Ranges* shard = nullptr;
  TILEWISE_RETURN_IF_ERROR(find_shard(plan, side, rank, &shard));
  TILEWISE_RETURN_IF_ERROR(check_copy(*shard, whole, row_bytes, rows));
  if (row_bytes > 0) magi::undispatch(*shard, rows, row_bytes, whole);
  return TILEWISE_OK;
}
