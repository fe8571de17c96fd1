// The C and C++ interface of distributed attention, as a user's program: what is refused, and how.
#include <tilewise/tilewise_distributed.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <thread>

namespace {

constexpr std::int64_t kLength = 20, kHeads = 2, kDim = 4;

// The tensors of a rank, which holds `rows` tokens.
struct Shard {
  explicit Shard(std::int64_t rows)
      : numbers(static_cast<std::size_t>(3 * rows * kHeads * kDim), 0.5F),
        out(static_cast<std::size_t>(rows * kHeads * kDim)) {
    float* const data = numbers.data();
    const std::int64_t count = rows * kHeads * kDim;
    problem.q = tilewise::tensor(data, TILEWISE_FP32, {1, rows, kHeads, kDim});
    problem.k = tilewise::tensor(data + count, TILEWISE_FP32, {1, rows, kHeads, kDim});
    problem.v = tilewise::tensor(data + 2 * count, TILEWISE_FP32, {1, rows, kHeads, kDim});
    problem.out = tilewise::tensor(std::span(out), {1, rows, kHeads, kDim});
  }
  std::vector<float> numbers;
  std::vector<float> out;
  tilewise::Problem problem;
};

tilewise::DistributedOptions options_of() {
  tilewise::DistributedOptions options;
  options.q_len = options.k_len = kLength;
  options.timeout_seconds = 30;
  return options;
}

// Returns the message of the error that a function throws; "" if it throws none.
template <class Function>
std::string message_of(Function function) {
  try {
    function();
    return "";
  } catch (const tilewise::Error& error) {
    return error.what();
  }
}

TEST(DistributedInterface, RunsOnThreads) {
  constexpr std::int32_t kSize = 3;
  // snippet: ranks
  const tilewise::LocalGroup group(kSize);
  std::vector<std::thread> ranks;
  std::vector<float> first(kSize);
  for (std::int32_t rank = 0; rank < kSize; ++rank) {
    ranks.emplace_back([&, rank] {
      tilewise::DistributedOptions options;
      options.q_len = options.k_len = kLength;  // of the whole
      options.schedule = tilewise::Schedule::kZigzag;
      const auto tokens = tilewise::tokens_of(options.schedule, kLength, kSize, rank);
      Shard shard(static_cast<std::int64_t>(tokens.size()));  // q, k, v, out of these tokens
      shard.problem.causal = 1;
      tilewise::forward(shard.problem, options, group.communicator(rank));
      first[static_cast<std::size_t>(rank)] = shard.out[0];
    });
  }
  for (std::thread& rank : ranks) rank.join();
  // end of snippet
  for (const float x : first) EXPECT_FLOAT_EQ(x, 0.5F);  // every value is
}

// An engine that loses its peers at one exchange, and may read what it was to send afterwards.
struct FailingEngine {
  explicit FailingEngine(const tilewise_communicator& working) : inner(working) {}

  tilewise_communicator communicator() {
    tilewise_communicator result = inner;
    result.self = this;
    result.reads_after_failure = 1;
    result.abort = [](void* self) {
      const FailingEngine& engine = *static_cast<FailingEngine*>(self);
      engine.inner.abort(engine.inner.self);
    };
    result.exchange = [](void* self, const tilewise_exchange* request, std::int32_t* failed_rank) {
      FailingEngine& engine = *static_cast<FailingEngine*>(self);
      if (++engine.exchanges < 3)
        return engine.inner.exchange(engine.inner.self, request, failed_rank);
      engine.held.assign(request->sends, request->sends + request->send_count);
      engine.inner.abort(engine.inner.self);
      *failed_rank = 1;
      return tilewise_fail(TILEWISE_TIMEOUT, "rank 1 did not answer in time");
    };
    return result;
  }

  tilewise_communicator inner;
  int exchanges = 0;
  std::vector<tilewise_message> held;
};

// The address sanitizer tells whether the memory is there.
TEST(DistributedInterface, MessagesOfAFailedEngineRemainReadable) {
  const tilewise::LocalGroup group(3);
  std::vector<std::thread> ranks;
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      Shard shard((kLength + 2 - rank) / 3);
      FailingEngine failing(group.communicator(rank));
      const tilewise_communicator communicator =
          rank == 0 ? failing.communicator() : group.communicator(rank);
      EXPECT_NE(message_of([&] { tilewise::forward(shard.problem, options_of(), communicator); }),
                "");
      if (rank != 0) return;
      std::int64_t bytes = 0;
      int sum = 0;
      for (const tilewise_message& message : failing.held) {
        for (std::int64_t i = 0; i < message.bytes; ++i)
          sum += static_cast<const unsigned char*>(message.data)[i];
        bytes += message.bytes;
      }
      EXPECT_GT(bytes, 0);
      EXPECT_GT(sum, 0);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(DistributedInterface, APlanIsMadeOnceAndRunsOften) {
  const tilewise::LocalGroup group(2);
  std::vector<std::thread> ranks;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      Shard shard(kLength / 2);
      const tilewise::DistributedPlan plan(tilewise::Operation::kForward, shard.problem,
                                           options_of(), group.communicator(rank));
      EXPECT_EQ(plan.info().schedule, TILEWISE_SCHEDULE_CONTIGUOUS);
      EXPECT_EQ(plan.info().sent_bytes, kLength / 2 * kHeads * kDim * 2 * 4);
      const tilewise::Workspace workspace = plan.make_workspace();
      for (int run = 0; run < 5; ++run) {
        std::fill(shard.out.begin(), shard.out.end(), std::nanf(""));
        plan.run(shard.problem, workspace);
        for (const float x : shard.out) ASSERT_FLOAT_EQ(x, 0.5F);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(DistributedInterface, RefusalsNameTheArgument) {
  const tilewise::LocalGroup group(2);
  const tilewise_communicator communicator = group.communicator(1);
  const auto refusal = [&](const tilewise::Problem& problem,
                           const tilewise::DistributedOptions& options) {
    return message_of([&] {
      const tilewise::DistributedPlan plan(tilewise::Operation::kForward, problem, options,
                                           communicator);
    });
  };
  Shard shard(kLength / 2);
  tilewise::DistributedOptions options = options_of();
  EXPECT_EQ(refusal(shard.problem, options), "");
  options.q_len = 23;
  EXPECT_EQ(refusal(shard.problem, options),
            "q: has 10 rows, but rank 1 of 2 holds 11 of 23 tokens (contiguous)");
  options.q_len = -1;
  EXPECT_EQ(refusal(shard.problem, options),
            "q_len: is -1, must be 0 to 2^48, the length of the whole");
  options = options_of();
  options.timeout_seconds = 0;
  EXPECT_EQ(refusal(shard.problem, options), "timeout_seconds: is 0, must be > 0");
  options = options_of();
  options.schedule = static_cast<tilewise::Schedule>(7);
  EXPECT_EQ(refusal(shard.problem, options),
            "schedule: is 7, must be 0 (automatic), 1 (contiguous), 2 (zigzag), 3 (striped) or 4 "
            "(balanced)");

  options = options_of();
  options.schedule = tilewise::Schedule::kStriped;
  std::vector<float> slopes(kHeads);
  shard.problem.alibi_slopes = tilewise::tensor(std::span(slopes), {kHeads});
  EXPECT_EQ(refusal(shard.problem, options), "alibi_slopes: not supported by the striped schedule");
  shard.problem.alibi_slopes = {};
  shard.problem.dropout_p = 0.1;
  EXPECT_EQ(refusal(shard.problem, options), "dropout_p: not supported by the striped schedule");
  shard.problem.dropout_p = 0;
  std::vector<std::int64_t> slices = {0, 5, 0, 5, 0};
  shard.problem.slices = tilewise::tensor(std::span(slices), {1, 5});
  EXPECT_EQ(refusal(shard.problem, options),
            "slices: not supported by the schedules of a ring; a token plan takes them");
  shard.problem.slices = {};
  std::vector<float> bias(100 * 20);
  shard.problem.bias = tilewise::tensor(std::span(bias), {10, 19});
  EXPECT_EQ(refusal(shard.problem, options),
            "bias: has 19 columns, must be 1 or k_len = 20, those of the whole");
  shard.problem.bias = tilewise::tensor(std::span(bias), {9, 20});
  EXPECT_EQ(refusal(shard.problem, options), "bias: has 9 rows, must be 1 or 10, those of q");
  shard.problem.bias.rank = 9;
  EXPECT_NE(refusal(shard.problem, options).find("bias: rank is 9"), std::string::npos);
  shard.problem.bias = {};
  tilewise::Problem large = shard.problem;
  const std::int64_t shape[] = {1, kLength / 2, kHeads, std::int64_t{1} << 53};
  large.q = large.k = large.v = large.out = tilewise_contiguous(nullptr, TILEWISE_FP32, 4, shape);
  EXPECT_EQ(refusal(large, options), "the workspace for this problem exceeds 2^63 bytes");
  tilewise::Problem ranked = shard.problem;
  ranked.q.rank = 9;
  EXPECT_NE(refusal(ranked, options).find("q: rank is 9"), std::string::npos);
  ranked = shard.problem;
  ranked.lse.rank = 9;
  EXPECT_NE(refusal(ranked, options).find("lse: rank is 9"), std::string::npos);
  std::vector<float> phi = {0};
  shard.problem.phi = tilewise::tensor(std::span(phi), {1});
  EXPECT_EQ(refusal(shard.problem, options), "phi: not supported by distributed attention");
  shard.problem.phi = {};
  std::vector<std::int32_t> table = {0};
  shard.problem.page_table = tilewise::tensor(std::span(table), {1, 1});
  EXPECT_EQ(refusal(shard.problem, options), "page_table: not supported by distributed attention");
  shard.problem.page_table = {};
  shard.problem.accumulate = 1;
  EXPECT_EQ(refusal(shard.problem, options),
            "accumulate: not supported by distributed attention, which uses it");
}

TEST(DistributedInterface, BadArgumentsOfTheCFunctionsAreRefused) {
  tilewise_local_group* group = nullptr;
  EXPECT_EQ(tilewise_local_group_create(0, &group), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "size: is 0, must be 1 to 4096");
  EXPECT_EQ(tilewise_local_group_create(2, nullptr), TILEWISE_INVALID_ARGUMENT);
  ASSERT_EQ(tilewise_local_group_create(2, &group), TILEWISE_OK);
  tilewise_communicator communicator;
  EXPECT_EQ(tilewise_local_group_communicator(group, 2, &communicator), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "rank: is 2, must be 0 to 1");
  ASSERT_EQ(tilewise_local_group_communicator(group, 0, &communicator), TILEWISE_OK);
  communicator.size = 0;
  Shard shard(kLength);
  tilewise_distributed_options options;
  tilewise_distributed_options_init(&options);
  EXPECT_EQ(tilewise_distributed_forward(&shard.problem, &options, &communicator, nullptr),
            TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "communicator: size is 0, must be >= 1");
  EXPECT_EQ(tilewise_distributed_forward(&shard.problem, &options, nullptr, nullptr),
            TILEWISE_INVALID_ARGUMENT);
  std::int32_t count = 0;
  tilewise_token_range ranges[TILEWISE_MAX_TOKEN_RANGES];
  EXPECT_EQ(tilewise_token_ranges(0, 10, 2, 0, ranges, &count), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_token_ranges(1, -1, 2, 0, ranges, &count), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_token_ranges(1, 10, 2, 2, ranges, &count), TILEWISE_INVALID_ARGUMENT);
  tilewise_distributed_plan_destroy(nullptr);
  tilewise_local_group_destroy(group);
  tilewise_local_group_destroy(nullptr);
  EXPECT_STREQ(tilewise_status_name(TILEWISE_TIMEOUT), "TIMEOUT");
  EXPECT_STREQ(tilewise_status_name(TILEWISE_REMOTE_ERROR), "REMOTE_ERROR");
}

// A run on tensors that the plan was not made for fails on every rank, and the next run works.
TEST(DistributedInterface, AnotherShapeThanThePlannedIsRefusedByAll) {
  const tilewise::LocalGroup group(2);
  std::vector<std::thread> ranks;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      Shard shard(kLength / 2);
      const tilewise::DistributedPlan plan(tilewise::Operation::kForward, shard.problem,
                                           options_of(), group.communicator(rank));
      const tilewise::Workspace workspace = plan.make_workspace();
      tilewise::Problem other = shard.problem;
      if (rank == 1) other.softcap = 3;
      const std::string message = message_of([&] { plan.run(other, workspace); });
      EXPECT_EQ(message, rank == 1 ? "softcap: differs from what the plan was made for"
                                   : "rank 1 has refused its problem: INVALID_ARGUMENT");
      EXPECT_EQ(message_of([&] { plan.run(shard.problem, workspace); }), "");
      const tilewise::Workspace small(64, 64);
      EXPECT_NE(message_of([&] { plan.run(shard.problem, small); }).find("workspace: 64 bytes"),
                std::string::npos);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
