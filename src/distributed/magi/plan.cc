#include "distributed/magi/plan.h"

#include <algorithm>
#include <numeric>

#include "distributed/fingerprint.h"
#include "distributed/magi/area.h"

namespace tilewise::distributed::magi {
namespace {

using problem::fail;
using problem::Status;

constexpr std::int64_t kChunksPerRank = 16;
constexpr std::int64_t kLeastChunk = 128;  // rows: about a tile of queries
constexpr std::int64_t kChunkMultiple = 64;
constexpr std::int64_t kMostStages = 8;
constexpr std::int64_t kLeastStageRows = 512;
constexpr std::int64_t kLeastPiece = 64;  // rows of a stage that lie together
// Deals with affinity compare bits of chunks: no more than this many words of them.
constexpr std::int64_t kMostAffinityWords = std::int64_t{1} << 21;
// The rows that each rank sends are counted if ranks times chunks are at most this.
constexpr std::int64_t kMostCounted = std::int64_t{1} << 24;
// A deal is good enough to be chosen for its communication if its largest area is that close to the
// best deal's.
constexpr double kTolerance = 1.01;

std::size_t index(std::int64_t number) { return static_cast<std::size_t>(number); }

Status check(const PlanOptions& options) {
  if (options.ranks < 1 || options.ranks > INT32_MAX) {
    return fail(TILEWISE_INVALID_ARGUMENT, "ranks: is %lld, must be 1 to 2^31 - 1",
                static_cast<long long>(options.ranks));
  }
  const std::pair<const char*, std::int64_t> counts[] = {{"chunk_rows", options.chunk_rows},
                                                         {"stages", options.stages}};
  for (const auto& [name, value] : counts) {
    if (value >= 0) continue;
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: is %lld, must be at least 0", name,
                static_cast<long long>(value));
  }
  return TILEWISE_OK;
}

std::int64_t automatic_chunk(std::int64_t rows, std::int64_t ranks) {
  const std::int64_t even = math::max(math::ceil_div(rows, ranks), 1);
  const std::int64_t fine = math::ceil_div(even, kChunksPerRank);
  if (fine <= kLeastChunk) return math::min(kLeastChunk, even);
  return math::round_up(fine, kChunkMultiple);
}

std::vector<std::int64_t> chunk_bounds(std::int64_t rows, std::int64_t chunk) {
  std::vector<std::int64_t> bounds = {0};
  while (bounds.back() < rows) bounds.push_back(math::min(bounds.back() + chunk, rows));
  return bounds;
}

// The keys that each chunk of queries sees.
std::vector<Ranges> chunk_keys(const Mask& mask, const std::vector<std::int64_t>& bounds,
                               std::int64_t chunk) {
  std::vector<const MaskBand*> order;
  for (const MaskBand& entry : mask.bands) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(), [](const MaskBand* a, const MaskBand* b) {
    return a->band.key_begin < b->band.key_begin;
  });
  std::vector<Ranges> keys(bounds.size() - 1);
  for (const MaskBand* const entry : order) {
    const math::Band& band = entry->band;
    for (std::int64_t c = band.row_begin / chunk; c * chunk < band.row_end; ++c) {
      const Range seen = math::tile_keys(band, bounds[index(c)], bounds[index(c + 1)]);
      Ranges& list = keys[index(c)];
      if (!list.empty() && list.back().begin <= seen.begin && seen.begin <= list.back().end) {
        list.back().end = math::max(list.back().end, seen.end);
      } else {
        list.push_back(seen);
      }
    }
  }
  for (Ranges& list : keys) normalise(list);
  return keys;
}

class Planner {
 public:
  Planner(const PlanOptions& options, Plan& plan) : options_(options), plan_(plan) {}

  void run() {
    Plan& plan = plan_;
    plan.q_bounds = chunk_bounds(plan.mask.q_len, plan.chunk_rows);
    areas_ = chunk_areas(plan.mask, plan.q_bounds);
    plan.area = std::accumulate(areas_.begin(), areas_.end(), std::int64_t{0});
    plan.area_lower_bound = area_lower_bound(areas_, plan.ranks);
    seen_ = chunk_keys(plan.mask, plan.q_bounds, plan.chunk_rows);
    with_queries_ = plan.mask.q_len == plan.mask.k_len;
    if (!with_queries_) spread_keys();
    choose();
    set_stages();
  }

 private:
  // As many keys for each rank, in their order.
  void spread_keys() {
    plan_.k_bounds = {0};
    for (std::int64_t rank = 0; rank < plan_.ranks; ++rank) {
      const std::int64_t rows = plan_.mask.k_len / plan_.ranks;
      const std::int64_t extra = rank < plan_.mask.k_len % plan_.ranks ? 1 : 0;
      plan_.k_bounds.push_back(plan_.k_bounds.back() + rows + extra);
      plan_.k_rank.push_back(static_cast<std::int32_t>(rank));
    }
  }

  // Takes the deal whose busiest rank communicates least among those whose balance is about the
  // best.
  void choose() {
    std::vector<Deal> deals;
    if (options_.dealing != Dealing::kInOrder) deals.push_back(deal_by_area(areas_, plan_.ranks));
    if (options_.dealing != Dealing::kByArea) deals.push_back(deal_in_order(areas_, plan_.ranks));
    std::int64_t best = plan_.area_lower_bound;
    if (options_.dealing == Dealing::kInOrder) best = deals.back().largest_area();
    if (options_.dealing != Dealing::kInOrder) best = math::max(best, deals[0].largest_area());
    const double most_area = kTolerance * static_cast<double>(best);
    for (const Deal& deal : deals) consider(deal, most_area);
    if (options_.dealing == Dealing::kAutomatic && with_queries_ && plan_.ranks > 1) {
      const ChunkNeeds needs = affordable_needs();
      for (const std::int64_t slack : {2, 8}) {  // more of it, while that saves communication
        if (needs.empty()) break;
        if (!consider(deal_by_area(areas_, plan_.ranks, &needs, slack), most_area)) break;
      }
    }
    take_chosen();
  }

  // Returns the most rows that a rank sends or receives, whichever is more: the busiest link sets
  // the pace of a stage. For many ranks and chunks it is all rows together, which is counted
  // faster.
  std::int64_t busiest_rows(const Plan& candidate) const {
    if (static_cast<std::int64_t>(areas_.size()) > kMostCounted / plan_.ranks)
      return candidate.remote_rows();
    const std::vector<std::int64_t>& bounds = with_queries_ ? plan_.q_bounds : plan_.k_bounds;
    const std::vector<std::int32_t>& owner = with_queries_ ? candidate.q_rank : plan_.k_rank;
    std::int64_t most = 0;
    std::vector<std::int64_t> sent(index(plan_.ranks));
    for (const Ranges& remote : candidate.remote_keys) {
      most = math::max(most, row_count(remote));
      for (const Range& range : remote) {
        std::size_t chunk = static_cast<std::size_t>(
            std::upper_bound(bounds.begin(), bounds.end(), range.begin) - bounds.begin() - 1);
        for (; chunk < owner.size() && bounds[chunk] < range.end; ++chunk) {
          sent[index(owner[chunk])] +=
              math::min(range.end, bounds[chunk + 1]) - math::max(range.begin, bounds[chunk]);
        }
      }
    }
    return math::max(most, *std::max_element(sent.begin(), sent.end()));
  }

  // Chooses the deal if no other one before has as few rows. Returns whether it does.
  bool consider(const Deal& deal, double most_area) {
    if (static_cast<double>(deal.largest_area()) > most_area) return false;
    Plan candidate = with_deal(deal);
    const std::int64_t rows = busiest_rows(candidate);
    if (rows >= fewest_rows_) return false;
    fewest_rows_ = rows;
    chosen_ = std::move(candidate);
    return true;
  }

  // The keys that the chunks see, if comparing them with those of the ranks takes few steps.
  ChunkNeeds affordable_needs() const {
    ChunkNeeds needs(seen_.size());
    std::int64_t words = 0;
    for (std::size_t c = 0; c < seen_.size(); ++c) {
      for (const Range& range : seen_[c]) {
        needs[c].push_back(
            {range.begin / plan_.chunk_rows, math::ceil_div(range.end, plan_.chunk_rows)});
      }
      if (!needs[c].empty()) words += (needs[c].back().end - needs[c].front().begin) / 64 + 1;
    }
    if (words > kMostAffinityWords / plan_.ranks) needs.clear();
    return needs;
  }

  // The parts of a plan that depend on the deal.
  Plan with_deal(const Deal& deal) const {
    Plan result;
    result.q_rank = deal.rank_of_chunk;
    result.area_of_rank = deal.area_of_rank;
    result.queries = shards(plan_.q_bounds, deal.rank_of_chunk);
    result.keys = with_queries_ ? result.queries : shards(plan_.k_bounds, plan_.k_rank);
    result.remote_keys.resize(index(plan_.ranks));
    for (std::size_t c = 0; c < seen_.size(); ++c) {
      Ranges& needed = result.remote_keys[index(deal.rank_of_chunk[c])];
      needed.insert(needed.end(), seen_[c].begin(), seen_[c].end());
    }
    for (std::size_t rank = 0; rank < result.remote_keys.size(); ++rank) {
      normalise(result.remote_keys[rank]);
      result.remote_keys[rank] = difference(result.remote_keys[rank], result.keys[rank]);
    }
    return result;
  }

  std::vector<Ranges> shards(const std::vector<std::int64_t>& bounds,
                             const std::vector<std::int32_t>& rank_of_chunk) const {
    std::vector<Ranges> result(index(plan_.ranks));
    for (std::size_t c = 0; c < rank_of_chunk.size(); ++c) {
      append(result[index(rank_of_chunk[c])], bounds[c], bounds[c + 1]);
    }
    return result;
  }

  void take_chosen() {
    plan_.q_rank = std::move(chosen_.q_rank);
    plan_.area_of_rank = std::move(chosen_.area_of_rank);
    plan_.queries = std::move(chosen_.queries);
    plan_.keys = std::move(chosen_.keys);
    plan_.remote_keys = std::move(chosen_.remote_keys);
    if (!with_queries_) return;
    plan_.k_bounds = plan_.q_bounds;
    plan_.k_rank = plan_.q_rank;
  }

  void set_stages() {
    std::int64_t most = 0;
    for (const Ranges& remote : plan_.remote_keys) most = math::max(most, row_count(remote));
    plan_.stages = options_.stages;
    if (plan_.stages == 0) plan_.stages = math::clamp(most / kLeastStageRows, 1, kMostStages);
    plan_.stages = math::min(plan_.stages, most);
  }

  const PlanOptions& options_;
  Plan& plan_;
  bool with_queries_ = false;        // chunk c of the keys is on the rank of chunk c of the queries
  std::vector<std::int64_t> areas_;  // of the chunks
  std::vector<Ranges> seen_;         // by the chunks
  Plan chosen_;
  std::int64_t fewest_rows_ = INT64_MAX;
};

}  // namespace

std::int64_t Plan::largest_area() const {
  return area_of_rank.empty() ? 0 : *std::max_element(area_of_rank.begin(), area_of_rank.end());
}

double Plan::imbalance() const {
  if (area == 0) return 1;
  return static_cast<double>(largest_area()) * static_cast<double>(ranks) /
         static_cast<double>(area);
}

std::int64_t Plan::remote_rows() const {
  std::int64_t rows = 0;
  for (const Ranges& remote : remote_keys) rows += row_count(remote);
  return rows;
}

std::int64_t Plan::remote_rows(std::int64_t rank) const {
  return row_count(remote_keys[index(rank)]);
}

Ranges Plan::stage_keys(std::int64_t rank, std::int64_t stage) const {
  if (stage == 0) return keys[index(rank)];
  const Ranges& remote = remote_keys[index(rank)];
  const std::int64_t rows = row_count(remote);
  const std::int64_t folds = rows / stages >= 4 * kLeastPiece ? 4 : 1;
  const std::int64_t pieces = folds * stages;
  const auto bound = [&](std::int64_t piece) {  // rows * piece / pieces, without its overflow
    return rows / pieces * piece + rows % pieces * piece / pieces;
  };
  const std::int64_t own = (stage - 1 + rank) % stages;
  Ranges result;
  for (std::int64_t fold = 0; fold < folds; ++fold) {
    const std::int64_t piece = fold * stages + (fold % 2 == 0 ? own : stages - 1 - own);
    for (const Range& range : rows_from_to(remote, bound(piece), bound(piece + 1))) {
      append(result, range.begin, range.end);
    }
  }
  return result;
}

std::uint64_t hash_of(const Plan& plan) {
  Hash hash;
  const auto add = [&](std::int64_t number) { hash.add(static_cast<std::uint64_t>(number)); };
  for (const std::int64_t number : {plan.mask.q_len, plan.mask.k_len, plan.mask.heads, plan.ranks,
                                    plan.chunk_rows, plan.stages})
    add(number);
  for (const MaskBand& entry : plan.mask.bands) {
    const math::Band& band = entry.band;
    for (const std::int64_t number :
         {band.row_begin, band.row_end, band.key_begin, band.key_end, band.lower_slope,
          band.lower_offset, band.upper_slope, band.upper_offset, entry.head})
      add(number);
  }
  for (const std::int32_t rank : plan.q_rank) add(rank);
  for (const std::int32_t rank : plan.k_rank) add(rank);
  return hash.value();
}

Status make_plan(const Mask& mask, const PlanOptions& options, Plan* plan) {
  if (const Status status = check(options); status != TILEWISE_OK) return status;
  *plan = {};
  plan->mask = mask;
  plan->ranks = options.ranks;
  plan->chunk_rows =
      options.chunk_rows > 0 ? options.chunk_rows : automatic_chunk(mask.q_len, options.ranks);
  if (mask.q_len / plan->chunk_rows >= INT32_MAX) {
    return fail(TILEWISE_INVALID_ARGUMENT, "chunk_rows: is %lld, too small for %lld queries",
                static_cast<long long>(plan->chunk_rows), static_cast<long long>(mask.q_len));
  }
  Planner(options, *plan).run();
  return TILEWISE_OK;
}

}  // namespace tilewise::distributed::magi
