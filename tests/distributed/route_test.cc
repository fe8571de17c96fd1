// What is sent: every rank gets the keys that its queries see, once, and its own gradients back
// once; the numbers of messages and rows have closed forms.
#include "distributed/route.h"

#include <algorithm>
#include <functional>
#include <map>

#include "distributed/random_whole.h"
#include "distributed/ring_plan.h"
#include "support/seed.h"

namespace tilewise::tests {
namespace {

using distributed::Buffer;
using distributed::Lengths;
using distributed::Piece;
using distributed::Pieces;
using distributed::RingPlan;
using distributed::Schedule;
using distributed::Shard;
using distributed::Span;
using distributed::Transfer;
using distributed::Whole;
using verify::Random;

// Plans of the messages of all ranks, without kernels.
std::vector<RingPlan> plan_all(const Whole& whole, Lengths lengths, Schedule schedule,
                               std::int32_t size) {
  std::vector<RingPlan> plans(static_cast<std::size_t>(size));
  for (std::int32_t rank = 0; rank < size; ++rank) {
    RingPlan& plan = plans[static_cast<std::size_t>(rank)];
    plan.options.lengths = lengths;
    plan.options.schedule = schedule;
    plan.rank = rank;
    plan.size = size;
    plan.operation = problem::Operation::kBackward;
    plan.whole = whole;
    plan.local.dk.dtype = plan.local.dv.dtype = TILEWISE_FP32;
    plan.queries = plan.ring().queries(rank);
    plan.keys = plan.ring().keys(rank);
    distributed::plan_transfers(plan);
  }
  return plans;
}

// A row of keys in a buffer is its token; a row of gradients is the list of ranks whose parts it
// has.
using Tokens = std::vector<std::int64_t>;
using Parts = std::vector<std::vector<std::int32_t>>;

// Runs the messages of all ranks, stage by stage, on rows that say where they come from.
class Simulation {
 public:
  Simulation(const std::vector<RingPlan>& plans, std::int64_t k_len)
      : plans_(plans), ranks_(plans.size()), k_len_(k_len) {
    for (std::size_t r = 0; r < plans.size(); ++r) {
      Rank& rank = ranks_[r];
      for (std::int32_t k = 0; k < plans[r].keys.count; ++k) {
        const auto& range = plans[r].keys.ranges[static_cast<std::size_t>(k)];
        for (std::int64_t row = 0; row < range.rows(); ++row)
          rank.keys[Buffer::kOwnKeys].push_back(range.begin + row * range.stride);
      }
      rank.home.resize(rank.keys[Buffer::kOwnKeys].size());
    }
  }

  void run() {
    for (std::size_t stage = 0; stage < plans_[0].stages.size(); ++stage) {
      for (std::size_t r = 0; r < ranks_.size(); ++r) compute(r, stage);
      const std::vector<Rank> before = ranks_;
      for (std::size_t r = 0; r < ranks_.size(); ++r) receive(r, stage, before);
    }
  }

  const Parts& home(std::size_t rank) const { return ranks_[rank].home; }

 private:
  struct Rank {
    std::map<Buffer, Tokens> keys;
    std::map<Buffer, Parts> gradients;
    Parts home;
  };

  // The step of a stage: its keys must be in the buffer, and it makes its part of each gradient.
  void compute(std::size_t r, std::size_t stage) {
    const RingPlan& plan = plans_[r];
    if (stage == 0 || stage >= ranks_.size()) return;
    const std::int32_t owner = plan.ring().after(plan.rank, -static_cast<std::int32_t>(stage));
    const Pieces pieces = distributed::pieces_read(plan.ring(), plan.rank, owner);
    Tokens expected;
    for (const Piece& piece : pieces) {
      const auto range = plan.ring().keys(owner).ranges[static_cast<std::size_t>(piece.range)];
      for (std::int64_t row = piece.rows.begin; row < piece.rows.end; ++row)
        expected.push_back(range.begin + row * range.stride);
    }
    Tokens got = ranks_[r].keys[stage % 2 == 0 ? Buffer::kKeys0 : Buffer::kKeys1];
    got.resize(std::min(got.size(), expected.size()));
    EXPECT_EQ(got, expected) << "rank " << r << ", step " << stage;
    Parts& parts = ranks_[r].gradients[stage % 2 == 0 ? Buffer::kGradients0 : Buffer::kGradients1];
    parts.assign(expected.size(), {plan.rank});
  }

  // Finds the send that a receive takes.
  const Transfer& matching_send(std::int32_t receiver, const Transfer& receive, std::size_t stage) {
    const RingPlan& sender = plans_[static_cast<std::size_t>(receive.peer)];
    const Span& span = sender.stages[stage].sends;
    for (std::size_t s = span.begin; s < span.end; ++s) {
      const Transfer& send = sender.sends[s];
      if (send.peer == receiver && send.tag == receive.tag) {
        EXPECT_EQ(send.rows, receive.rows);
        return send;
      }
    }
    ADD_FAILURE() << "nothing sent to rank " << receiver << " at stage " << stage;
    return receive;
  }

  void receive(std::size_t r, std::size_t stage, const std::vector<Rank>& before) {
    const RingPlan& plan = plans_[r];
    Rank& rank = ranks_[r];
    const Span& span = plan.stages[stage].receives;
    for (std::size_t m = span.begin; m < span.end; ++m) {
      const Transfer& transfer = plan.receives[m];
      const Transfer& send = matching_send(plan.rank, transfer, stage);
      const Rank& sender = before[static_cast<std::size_t>(transfer.peer)];
      for (std::int64_t row = 0; row < transfer.rows; ++row) {
        const auto from = static_cast<std::size_t>(send.row + row);
        if (transfer.buffer <= Buffer::kKeys1) {
          Tokens& keys = rank.keys[transfer.buffer];
          keys.resize(static_cast<std::size_t>(k_len_), -1);
          keys[static_cast<std::size_t>(transfer.row + row)] = sender.keys.at(send.buffer).at(from);
        } else {
          const std::vector<std::int32_t>& parts = sender.gradients.at(send.buffer).at(from);
          const Buffer own = stage % 2 == 0 ? Buffer::kGradients0 : Buffer::kGradients1;
          Parts& sums = transfer.buffer == Buffer::kHome ? rank.home : rank.gradients[own];
          std::vector<std::int32_t>& sum = sums.at(static_cast<std::size_t>(transfer.target + row));
          sum.insert(sum.end(), parts.begin(), parts.end());
        }
      }
    }
  }

  const std::vector<RingPlan>& plans_;
  std::vector<Rank> ranks_;
  std::int64_t k_len_;
};

TEST(Route, EveryReaderGetsItsKeysAndEveryOwnerItsGradients) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int round = 0; round < 300; ++round) {
    const RandomWhole sample(random);
    const std::int32_t size = static_cast<std::int32_t>(random.between(1, 7));
    const Schedule schedule =
        random.pick({Schedule::kContiguous, Schedule::kZigzag, Schedule::kStriped});
    const auto plans = plan_all(sample.whole, sample.lengths, schedule, size);
    Simulation simulation(plans, sample.lengths.k);
    simulation.run();
    // Every other rank that reads a row has sent its part home once.
    for (std::int32_t owner = 0; owner < size; ++owner) {
      const RingPlan& plan = plans[static_cast<std::size_t>(owner)];
      Parts expected(static_cast<std::size_t>(plan.keys.rows()));
      for (std::int32_t reader = 0; reader < size; ++reader) {
        if (reader == owner) continue;
        for (const Piece& piece : distributed::pieces_read(plan.ring(), reader, owner)) {
          for (std::int64_t row = piece.rows.begin; row < piece.rows.end; ++row)
            expected[static_cast<std::size_t>(plan.keys.rows_before(piece.range) + row)].push_back(
                reader);
        }
      }
      Parts got = simulation.home(static_cast<std::size_t>(owner));
      for (auto& parts : got) std::sort(parts.begin(), parts.end());
      ASSERT_EQ(got, expected) << "round " << round << ", owner " << owner;
    }
  }
}

// The messages and rows that a rank sends or receives, of keys or of gradients.
struct Count {
  std::int64_t messages = 0;
  std::int64_t rows = 0;
  bool operator==(const Count&) const = default;
};
Count count_of(const std::vector<Transfer>& transfers, bool keys) {
  Count count;
  for (const Transfer& transfer : transfers) {
    if ((transfer.buffer <= Buffer::kKeys1) != keys) continue;
    ++count.messages;
    count.rows += transfer.rows;
  }
  return count;
}

Whole whole_of(Lengths lengths, bool causal, std::int64_t window_left) {
  tilewise_problem request;
  tilewise_problem_init(&request);
  request.causal = causal;
  request.window_left = window_left;
  const std::int64_t shape[] = {1, 1, 1, 8};
  request.q = request.k = request.v = request.out =
      tilewise_contiguous(nullptr, TILEWISE_FP32, 4, shape);
  Whole whole;
  EXPECT_EQ(distributed::make_whole(problem::Operation::kForward, request, lengths, &whole),
            TILEWISE_OK);
  return whole;
}

// Gradients take the way of the keys back: what a rank receives of keys, it sends of gradients.
void expect_counts(const std::vector<RingPlan>& plans,
                   const std::function<Count(std::int64_t rank)>& received) {
  for (const RingPlan& plan : plans) {
    EXPECT_EQ(count_of(plan.receives, true), received(plan.rank)) << "rank " << plan.rank;
    EXPECT_EQ(count_of(plan.sends, false), received(plan.rank)) << "rank " << plan.rank;
  }
}

TEST(Route, WithoutAMaskEverythingGoesToTheNeighbour) {
  for (const std::int32_t size : {1, 2, 3, 5, 8}) {
    const std::int64_t rows = 6;
    const Lengths lengths = {size * rows, size * rows};
    const Whole whole = whole_of(lengths, false, -1);
    const auto plans = plan_all(whole, lengths, Schedule::kContiguous, size);
    expect_counts(plans, [&](std::int64_t) { return Count{size - 1, (size - 1) * rows}; });
    for (const RingPlan& plan : plans) {
      for (const Transfer& send : plan.sends) EXPECT_EQ(send.peer, (plan.rank + 1) % size);
      EXPECT_EQ(count_of(plan.sends, true), (Count{size - 1, (size - 1) * rows}));
    }
  }
}

TEST(Route, KeysThatNoQuerySeesAreNotSent) {
  constexpr std::int32_t kSize = 6;
  constexpr std::int64_t kRows = 10;
  const Lengths lengths = {kSize * kRows, kSize * kRows};
  // Causal, contiguous: rank r reads the keys of the r ranks before it.
  expect_counts(plan_all(whole_of(lengths, true, -1), lengths, Schedule::kContiguous, kSize),
                [&](std::int64_t rank) {
                  return Count{rank, rank * kRows};
                });
  // A window of 3 keys before the query: the last 3 of the rank before; one of 13: 3 more.
  expect_counts(plan_all(whole_of(lengths, true, 3), lengths, Schedule::kContiguous, kSize),
                [&](std::int64_t rank) {
                  return rank == 0 ? Count{} : Count{1, 3};
                });
  expect_counts(plan_all(whole_of(lengths, true, 13), lengths, Schedule::kContiguous, kSize),
                [&](std::int64_t rank) {
                  return rank == 0 ? Count{} : rank == 1 ? Count{1, kRows} : Count{2, 13};
                });
}

// With chunks of c tokens, rank r reads the first chunk of the ranks before it and both chunks of
// those after it; the two of the last rank are one range.
TEST(Route, ZigzagSendsThreeQuartersOfARing) {
  for (const std::int32_t size : {2, 3, 4, 8}) {
    constexpr std::int64_t kChunk = 5;
    const Lengths lengths = {2 * size * kChunk, 2 * size * kChunk};
    const auto plans = plan_all(whole_of(lengths, true, -1), lengths, Schedule::kZigzag, size);
    expect_counts(plans, [&](std::int64_t rank) {
      const std::int64_t after = size - 1 - rank;
      return Count{rank + 2 * after - (after > 0 ? 1 : 0), kChunk * (rank + 2 * after)};
    });
    std::int64_t rows = 0;  // a ring would send all keys to all other ranks
    for (const RingPlan& plan : plans) rows += count_of(plan.sends, true).rows;
    EXPECT_EQ(4 * rows, 3 * (size - 1) * lengths.k);
  }
}

}  // namespace
}  // namespace tilewise::tests
