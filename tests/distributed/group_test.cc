// The in-process engine: what is sent arrives, in order; time limits, failures and their cause
// (T25).
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>

#include "distributed/ranks.h"
#include "support/seed.h"

namespace tilewise::tests {
namespace {

using distributed::LocalGroup;

constexpr double kLong = 60;  // seconds: longer than any test takes

Status exchange(LocalGroup& group, std::int32_t rank, const std::vector<tilewise_message>& sends,
                const std::vector<tilewise_message>& receives, double timeout_seconds,
                std::int32_t* failed_rank) {
  const tilewise_exchange request = {sends.data(), receives.data(),
                                     static_cast<std::int32_t>(sends.size()),
                                     static_cast<std::int32_t>(receives.size()), timeout_seconds};
  const tilewise_communicator communicator = group.communicator(rank);
  return communicator.exchange(communicator.self, &request, failed_rank);
}

// Every rank sends random numbers of bytes to every rank, itself included, in many exchanges.
TEST(LocalGroup, EveryMessageArrives) {
  constexpr std::int32_t kSize = 5;
  constexpr int kRounds = 100;
  LocalGroup group(kSize);
  // The byte at `at` of message `m` of a round, and its size: known to both sides.
  const auto byte_of = [](int round, std::int32_t from, std::int32_t to, int m, std::size_t at) {
    return static_cast<char>((static_cast<std::size_t>(round * 31 + from * 7 + to * 3 + m) + at) %
                             251);
  };
  const auto size_of = [](int round, std::int32_t from, std::int32_t to, int m) {
    verify::Random random(run_seed() +
                          static_cast<std::uint64_t>(((round * 8 + from) * 8 + to) * 4 + m));
    return static_cast<std::size_t>(random.chance(0.2) ? 0 : random.between(1, 3000));
  };
  std::atomic<int> wrong{0};
  run_ranks(kSize, [&](std::int32_t rank) {
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::vector<char>> out, in;
      std::vector<tilewise_message> sends, receives;
      for (std::int32_t peer = 0; peer < kSize; ++peer) {
        for (int m = 0; m < 3; ++m) {  // two of them with one tag
          out.emplace_back(size_of(round, rank, peer, m));
          in.emplace_back(size_of(round, peer, rank, m));
          for (std::size_t i = 0; i < out.back().size(); ++i)
            out.back()[i] = byte_of(round, rank, peer, m, i);
          const std::int32_t tag = m / 2;
          sends.push_back(
              {out.back().data(), static_cast<std::int64_t>(out.back().size()), peer, tag});
          receives.push_back(
              {in.back().data(), static_cast<std::int64_t>(in.back().size()), peer, tag});
        }
      }
      std::int32_t failed = -1;
      if (exchange(group, rank, sends, receives, kLong, &failed) != TILEWISE_OK) ++wrong;
      for (std::int32_t peer = 0; peer < kSize; ++peer) {
        for (int m = 0; m < 3; ++m) {
          const std::vector<char>& got = in[static_cast<std::size_t>(peer * 3 + m)];
          for (std::size_t i = 0; i < got.size(); ++i) {
            if (got[i] != byte_of(round, peer, rank, m, i)) ++wrong;
          }
        }
      }
    }
  });
  EXPECT_EQ(wrong, 0);
}

// Rank 2 never calls. Rank 1 waits for it, rank 0 waits for rank 1, and both name rank 2.
TEST(LocalGroup, TheSilentRankIsNamedByThoseWhoWaitInAChain) {
  LocalGroup group(4);
  Outcome outcomes[3];
  std::int32_t failed[3] = {-1, -1, -1};
  const auto start = std::chrono::steady_clock::now();
  run_ranks(3, [&](std::int32_t number) {
    const std::int32_t rank = number == 2 ? 3 : number;  // 3 waits for 0
    const std::int32_t awaited = number == 2 ? 0 : number + 1;
    char byte = 0;
    // Whoever waits longest does not know more: rank 0 and 3 reach their limits first.
    const double limit = number == 1 ? 1.5 : 0.5;
    outcomes[number] =
        outcome_of(exchange(group, rank, {}, {{&byte, 1, awaited, 0}}, limit, &failed[number]));
  });
  EXPECT_LT(seconds_since(start), 5);
  int timeouts = 0;
  for (int number = 0; number < 3; ++number) {
    EXPECT_TRUE(outcomes[number].status == TILEWISE_TIMEOUT ||
                outcomes[number].status == TILEWISE_REMOTE_ERROR);
    timeouts += outcomes[number].status == TILEWISE_TIMEOUT;
    EXPECT_EQ(failed[number], 2) << outcomes[number].message;
  }
  EXPECT_EQ(timeouts, 1);
  // Nothing works any more, for the silent rank neither.
  std::int32_t late = -1;
  char byte = 0;
  EXPECT_EQ(exchange(group, 2, {{&byte, 1, 1, 0}}, {}, kLong, &late), TILEWISE_REMOTE_ERROR);
  EXPECT_EQ(late, 2);
}

TEST(LocalGroup, AbortEndsTheWaitOfAllOthers) {
  LocalGroup group(3);
  Outcome outcomes[3];
  std::int32_t failed[3] = {-1, -1, -1};
  const auto start = std::chrono::steady_clock::now();
  run_ranks(3, [&](std::int32_t rank) {
    char byte = 0;
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      group.abort(1);
    } else {
      outcomes[rank] = outcome_of(
          exchange(group, rank, {}, {{&byte, 1, (rank + 1) % 3, 0}}, kLong, &failed[rank]));
    }
  });
  EXPECT_LT(seconds_since(start), 10);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(outcomes[rank].status, TILEWISE_REMOTE_ERROR);
    EXPECT_EQ(failed[rank], 1);
  }
}

TEST(LocalGroup, AMessageOfAnotherSizeIsRefusedByAll) {
  LocalGroup group(3);
  Outcome outcomes[3];
  run_ranks(3, [&](std::int32_t rank) {
    char bytes[8] = {};
    std::int32_t failed = -1;
    if (rank == 0) {
      outcomes[0] = outcome_of(exchange(group, 0, {{bytes, 8, 1, 0}}, {}, kLong, &failed));
    } else {
      outcomes[rank] =
          outcome_of(exchange(group, rank, {}, {{bytes, 4, rank == 1 ? 0 : 1, 0}}, kLong, &failed));
    }
    EXPECT_EQ(failed, 0);
  });
  for (const Outcome& outcome : outcomes)
    EXPECT_EQ(outcome.status, TILEWISE_INVALID_ARGUMENT) << outcome.message;
}

TEST(LocalGroup, BadRequestsAreRefused) {
  LocalGroup group(2);
  char byte = 0;
  std::int32_t failed = -1;
  EXPECT_EQ(exchange(group, 0, {{&byte, 1, 2, 0}}, {}, 1, &failed), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(problem::message(), "peer: is 2, must be 0 to 1");
  EXPECT_EQ(exchange(group, 0, {}, {{&byte, -1, 1, 0}}, 1, &failed), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(problem::message(), "bytes: is -1, must be >= 0");
  EXPECT_EQ(exchange(group, 0, {}, {{&byte, 1, 1, 0}}, 0, &failed), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(exchange(group, 0, {}, {{&byte, 1, 1, 0}}, NAN, &failed), TILEWISE_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tilewise::tests
