#include "distributed/magi/deal.h"

#include <algorithm>
#include <numeric>

namespace tilewise::distributed::magi {
namespace {

std::size_t index(std::int64_t number) { return static_cast<std::size_t>(number); }

// The chunk numbers, largest area first; equal ones in their order.
std::vector<std::int32_t> largest_first(std::span<const std::int64_t> areas) {
  std::vector<std::int32_t> order(areas.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return areas[index(a)] > areas[index(b)];
  });
  return order;
}

// The counts: floor(n / R) chunks for each rank, and one more for n mod R of them.
class Capacity {
 public:
  Capacity(std::int64_t chunks, std::int64_t ranks)
      : least_(chunks / ranks), extra_(chunks % ranks), counts_(index(ranks)) {}

  bool may_take(std::int64_t rank) const {
    const std::int64_t count = counts_[index(rank)];
    return count < least_ || (count == least_ && extra_ > 0);
  }
  void take(std::int64_t rank) {
    if (counts_[index(rank)]++ == least_) --extra_;
  }

 private:
  std::int64_t least_;
  std::int64_t extra_;  // ranks that may still take one more than the others
  std::vector<std::int64_t> counts_;
};

// Sets of chunks of keys as bits: those that each chunk sees, and those that each rank has or needs
// so far.
class Affinity {
 public:
  Affinity(const ChunkNeeds& needs, std::int64_t ranks)
      : words_((needs.size() + 63) / 64), of_rank_(index(ranks) * words_), seen_(needs.size()) {
    for (std::size_t c = 0; c < needs.size(); ++c) {
      if (needs[c].empty()) continue;
      Seen& seen = seen_[c];
      seen.first_word = index(needs[c].front().begin) / 64;
      seen.bits.resize(index(needs[c].back().end - 1) / 64 + 1 - seen.first_word);
      for (const Range& range : needs[c]) {
        for (std::int64_t k = range.begin; k < range.end; ++k) {
          set(seen.bits.data(), index(k) - 64 * seen.first_word);
        }
      }
    }
  }

  std::int64_t common(std::int32_t chunk, std::int64_t rank) const {
    const std::uint64_t* const has = &of_rank_[index(rank) * words_];
    std::int64_t count = has[index(chunk) / 64] >> (chunk % 64) & 1;
    const Seen& seen = seen_[index(chunk)];
    for (std::size_t w = 0; w < seen.bits.size(); ++w) {
      count += bit_count(seen.bits[w] & has[seen.first_word + w]);
    }
    return count;
  }

  void take(std::int32_t chunk, std::int64_t rank) {
    std::uint64_t* const has = &of_rank_[index(rank) * words_];
    const Seen& seen = seen_[index(chunk)];
    for (std::size_t w = 0; w < seen.bits.size(); ++w) has[seen.first_word + w] |= seen.bits[w];
    set(has, index(chunk));
  }

 private:
  struct Seen {
    std::size_t first_word = 0;
    std::vector<std::uint64_t> bits;
  };

  // std::popcount is a call of a function where the processor may lack the instruction.
  static std::int64_t bit_count(std::uint64_t bits) {
    bits -= bits >> 1 & 0x5555555555555555u;
    bits = (bits & 0x3333333333333333u) + (bits >> 2 & 0x3333333333333333u);
    return static_cast<std::int64_t>(
        (((bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0Fu) * 0x0101010101010101u) >> 56);
  }

  static void set(std::uint64_t* bits, std::size_t bit) { bits[bit / 64] |= 1ull << (bit % 64); }

  std::size_t words_;
  std::vector<std::uint64_t> of_rank_;  // (ranks, words)
  std::vector<Seen> seen_;              // by the chunks
};

// The ranks by area, the lightest on top, those that may take one more.
class Lightest {
 public:
  explicit Lightest(std::int64_t ranks) : order_(index(ranks)) {
    std::iota(order_.begin(), order_.end(), 0);
  }
  // Calls f(rank) for the open ranks whose area is at most the lightest one's plus `slack`.
  template <class Function>
  void for_each_within(std::int64_t slack, const std::vector<std::int64_t>& areas,
                       const Capacity& capacity, Function f) {
    // A rank that is full stays full.
    std::erase_if(order_, [&](std::int32_t rank) { return !capacity.may_take(rank); });
    const std::int64_t limit = areas[index(order_.front())] + slack;
    for (const std::int32_t rank : order_) {
      if (areas[index(rank)] > limit) return;
      f(rank);
    }
  }
  // Restores the order after the area of `rank` has grown.
  void moved(std::int32_t rank, const std::vector<std::int64_t>& areas) {
    auto place = std::find(order_.begin(), order_.end(), rank);
    for (; place + 1 != order_.end() && areas[index(place[1])] < areas[index(rank)]; ++place) {
      std::swap(place[0], place[1]);
    }
  }

 private:
  std::vector<std::int32_t> order_;
};

// Swaps chunks of the heaviest rank for smaller ones of another while that lowers the larger area
// of the two.
class Balancer {
 public:
  Balancer(std::span<const std::int64_t> areas, Deal& deal)
      : areas_(areas), deal_(deal), chunks_(deal.area_of_rank.size()) {
    for (std::size_t c = 0; c < areas.size(); ++c) {
      chunks_[index(deal.rank_of_chunk[c])].push_back(static_cast<std::int32_t>(c));
    }
  }

  void run(std::int64_t lower_bound) {
    const std::vector<std::int64_t>& area = deal_.area_of_rank;
    for (std::size_t step = 0; step < 2 * areas_.size() + 16; ++step) {
      const auto heaviest = std::max_element(area.begin(), area.end());
      if (*heaviest <= lower_bound + lower_bound / 1000) return;
      if (!improve(static_cast<std::size_t>(heaviest - area.begin()))) return;
    }
  }

 private:
  struct Swap {
    std::int64_t larger = INT64_MAX;  // area of the heavier of the two ranks
    std::size_t rank = 0;
    std::size_t mine = 0;
    std::size_t other = 0;
  };

  bool improve(std::size_t heaviest) {
    const std::vector<std::int64_t>& area = deal_.area_of_rank;
    Swap best{.larger = area[heaviest]};
    const auto lightest = std::min_element(area.begin(), area.end());
    try_swaps(heaviest, static_cast<std::size_t>(lightest - area.begin()), best);
    if (best.larger >= area[heaviest] && area.size() <= kTriedRanks) {
      for (std::size_t rank = 0; rank < area.size(); ++rank) try_swaps(heaviest, rank, best);
    }
    if (best.larger >= area[heaviest]) return false;
    apply(heaviest, best);
    return true;
  }

  void try_swaps(std::size_t heaviest, std::size_t rank, Swap& best) const {
    const std::vector<std::int64_t>& area = deal_.area_of_rank;
    if (rank == heaviest || area[rank] >= best.larger) return;
    for (std::size_t m = 0; m < chunks_[heaviest].size(); ++m) {
      for (std::size_t o = 0; o < chunks_[rank].size(); ++o) {
        const std::int64_t moved =
            areas_[index(chunks_[heaviest][m])] - areas_[index(chunks_[rank][o])];
        const std::int64_t larger = std::max(area[heaviest] - moved, area[rank] + moved);
        if (moved > 0 && larger < best.larger) best = {larger, rank, m, o};
      }
    }
  }

  void apply(std::size_t heaviest, const Swap& swap) {
    std::int32_t& mine = chunks_[heaviest][swap.mine];
    std::int32_t& other = chunks_[swap.rank][swap.other];
    const std::int64_t moved = areas_[index(mine)] - areas_[index(other)];
    deal_.area_of_rank[heaviest] -= moved;
    deal_.area_of_rank[swap.rank] += moved;
    std::swap(deal_.rank_of_chunk[index(mine)], deal_.rank_of_chunk[index(other)]);
    std::swap(mine, other);
  }

  static constexpr std::size_t kTriedRanks = 256;  // beyond, only the lightest one

  std::span<const std::int64_t> areas_;
  Deal& deal_;
  std::vector<std::vector<std::int32_t>> chunks_;  // of each rank
};

}  // namespace

std::int64_t Deal::largest_area() const {
  return area_of_rank.empty() ? 0 : *std::max_element(area_of_rank.begin(), area_of_rank.end());
}

std::int64_t area_lower_bound(std::span<const std::int64_t> areas, std::int64_t ranks) {
  const std::int64_t chunks = static_cast<std::int64_t>(areas.size());
  if (chunks == 0) return 0;
  std::vector<std::int64_t> sorted(areas.begin(), areas.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::int64_t> sums(sorted.size() + 1);  // of the smallest
  std::partial_sum(sorted.begin(), sorted.end(), sums.begin() + 1);
  const std::int64_t least = chunks / ranks;  // chunks that every rank takes
  const std::int64_t beside = math::max(least - 1, 0);
  std::int64_t bound =
      math::max(math::ceil_div(sums.back(), ranks), sorted.back() + sums[index(beside)]);
  for (std::int64_t few = 0; few < least; ++few) {
    const std::int64_t smallest = few * ranks + ranks - 1;
    const std::int64_t end = smallest + least - few;
    if (end > chunks) break;
    bound = math::max(bound, sums[index(few)] + sums[index(end)] - sums[index(smallest)]);
  }
  return bound;
}

Deal deal_in_order(std::span<const std::int64_t> areas, std::int64_t ranks) {
  Deal deal = {{}, std::vector<std::int64_t>(index(ranks))};
  const std::int64_t chunks = static_cast<std::int64_t>(areas.size());
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::int64_t count = chunks / ranks + (rank < chunks % ranks ? 1 : 0);
    for (std::int64_t c = 0; c < count; ++c) {
      deal.area_of_rank[index(rank)] += areas[deal.rank_of_chunk.size()];
      deal.rank_of_chunk.push_back(static_cast<std::int32_t>(rank));
    }
  }
  return deal;
}

Deal deal_by_area(std::span<const std::int64_t> areas, std::int64_t ranks, const ChunkNeeds* needs,
                  std::int64_t slack) {
  Deal deal = {std::vector<std::int32_t>(areas.size()), std::vector<std::int64_t>(index(ranks))};
  Capacity capacity(static_cast<std::int64_t>(areas.size()), ranks);
  Affinity affinity(needs != nullptr ? *needs : ChunkNeeds(), ranks);
  Lightest lightest(ranks);
  for (const std::int32_t chunk : largest_first(areas)) {
    const std::int64_t area = areas[index(chunk)];
    std::int32_t chosen = -1;
    std::int64_t most = -1;
    lightest.for_each_within(
        needs != nullptr ? slack * area : 0, deal.area_of_rank, capacity, [&](std::int32_t rank) {
          if (needs == nullptr && chosen >= 0) return;
          const std::int64_t common = needs != nullptr ? affinity.common(chunk, rank) : 0;
          if (common > most) {
            most = common;
            chosen = rank;
          }
        });
    deal.rank_of_chunk[index(chunk)] = chosen;
    deal.area_of_rank[index(chosen)] += area;
    capacity.take(chosen);
    lightest.moved(chosen, deal.area_of_rank);
    if (needs != nullptr) affinity.take(chunk, chosen);
  }
  Balancer(areas, deal).run(area_lower_bound(areas, ranks));
  return deal;
}

}  // namespace tilewise::distributed::magi
