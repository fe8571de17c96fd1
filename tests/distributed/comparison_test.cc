// The comparison of problems: every rank names the rank that passes another one.
#include <cstdlib>

#include "distributed/fingerprint.h"
#include "distributed/ranks.h"

namespace tilewise::tests {
namespace {

using distributed::Field;
using distributed::Fingerprint;
using distributed::LocalGroup;

// Compares fingerprints that `change` has made on every rank.
template <class Change>
std::vector<Outcome> compare(std::int32_t size, Change change) {
  LocalGroup group(size);
  std::vector<Outcome> outcomes(static_cast<std::size_t>(size));
  run_ranks(size, [&](std::int32_t rank) {
    Fingerprint print;
    print[Field::kHeads] = 8;
    change(rank, print);
    std::vector<char> scratch(static_cast<std::size_t>(distributed::comparison_bytes(size)));
    outcomes[static_cast<std::size_t>(rank)] = outcome_of(
        distributed::compare_problems(group.communicator(rank), print, 60, scratch.data()));
  });
  return outcomes;
}

TEST(Comparison, EqualProblemsPass) {
  for (const std::int32_t size : {1, 2, 5}) {
    for (const Outcome& outcome : compare(size, [](std::int32_t, Fingerprint&) {}))
      EXPECT_EQ(outcome.status, TILEWISE_OK) << outcome.message;
  }
}

TEST(Comparison, EveryRankNamesTheOneThatDiffers) {
  for (std::int32_t different = 0; different < 4; ++different) {
    const auto outcomes = compare(4, [&](std::int32_t rank, Fingerprint& print) {
      if (rank == different) print[Field::kHeads] = 4;
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.status, TILEWISE_INVALID_ARGUMENT);
      EXPECT_EQ(outcome.message, "rank " + std::to_string(different) +
                                     " passes another problem: H is 4, on rank " +
                                     (different == 0 ? "1" : "0") + " 8");
    }
  }
}

TEST(Comparison, OtherContentsAreNamed) {
  const auto outcomes = compare(3, [&](std::int32_t rank, Fingerprint& print) {
    print[Field::kCuSeqlensQ] = rank == 1 ? 12345 : 678;
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.message,
              "rank 1 passes another problem: the contents of cu_seqlens_q differ from those on "
              "rank 0");
  }
}

TEST(Comparison, ARefusalIsKnownToAll) {
  LocalGroup group(3);
  Outcome outcomes[3];
  run_ranks(3, [&](std::int32_t rank) {
    Fingerprint print;
    if (rank == 2) {
      print[Field::kStatus] = TILEWISE_UNSUPPORTED;
      problem::fail(TILEWISE_UNSUPPORTED, "slices: not supported");
    }
    std::vector<char> scratch(static_cast<std::size_t>(distributed::comparison_bytes(3)));
    outcomes[rank] = outcome_of(
        distributed::compare_problems(group.communicator(rank), print, 60, scratch.data()));
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(outcomes[rank].status, TILEWISE_INVALID_ARGUMENT);
    EXPECT_EQ(outcomes[rank].message, "rank 2 has refused its problem: UNSUPPORTED");
  }
  EXPECT_EQ(outcomes[2].status, TILEWISE_UNSUPPORTED);
  EXPECT_EQ(outcomes[2].message, "slices: not supported");
}

}  // namespace
}  // namespace tilewise::tests
