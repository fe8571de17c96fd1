// Token plans in the C and C++ interface, as a user's program: a mask is divided, each rank runs
// its shard, and the results are those of one process.
#include <tilewise/tilewise_distributed.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <thread>

namespace {

using tilewise::Side;

constexpr std::int64_t kTokens = 90, kHeads = 2, kDim = 4, kWidth = kHeads * kDim;
constexpr std::int32_t kRanks = 3;

constexpr std::int64_t kTwoBatches[] = {2, 3, kHeads, kDim};

using Numbers = std::vector<double>;

// Two causal documents; the second one also sees the beginning of the first.
std::vector<std::int64_t> slices = {0, 60, 0, 60, 1, 60, 90, 60, 90, 1, 60, 90, 0, 10, 0};

tilewise::Problem mask_of(std::vector<std::int64_t>& list) {
  tilewise::Problem mask;
  mask.slices = tilewise::tensor(std::span(list), {static_cast<std::int64_t>(list.size()) / 5, 5});
  return mask;
}

tilewise::TokenPlan small_plan(std::int32_t ranks = kRanks) {
  return tilewise::TokenPlan(mask_of(slices), {kTokens, kTokens, ranks, 8, 2});
}

// The arrays of attention for some tokens, a row of kWidth numbers for each.
struct Rows {
  explicit Rows(std::int64_t tokens) : lse(static_cast<std::size_t>(tokens * kHeads)) {
    const auto add = [&](Numbers& numbers, tilewise_tensor& tensor) {
      numbers.resize(static_cast<std::size_t>(tokens * kWidth), std::nan(""));
      tensor = tilewise::tensor(std::span(numbers), {tokens, kHeads, kDim});
    };
    add(q, problem.q);
    add(k, problem.k);
    add(v, problem.v);
    add(out, problem.out);
    add(dout, problem.dout);
    add(dq, problem.dq);
    add(dk, problem.dk);
    add(dv, problem.dv);
    problem.lse = tilewise::tensor(std::span(lse), {kHeads, tokens});
  }
  Rows(const Rows&) = delete;
  Numbers q, k, v, out, dout, dq, dk, dv, lse;
  tilewise::Problem problem;
};

struct Whole : Rows {
  Whole() : Rows(kTokens) {
    double phase = 0;
    for (Numbers* numbers : {&q, &k, &v, &dout}) {
      for (double& number : *numbers) number = std::sin(phase += 1.7);
    }
  }
};

// The rows of a rank, with their inputs.
struct Shard : Rows {
  Shard(const tilewise::TokenPlan& plan, std::int32_t rank, const Whole& whole)
      : Rows(plan.info_of(rank).q_rows) {
    plan.dispatch(Side::kQueries, rank, whole.q.data(), kWidth, q.data());
    plan.dispatch(Side::kKeys, rank, whole.k.data(), kWidth, k.data());
    plan.dispatch(Side::kKeys, rank, whole.v.data(), kWidth, v.data());
    plan.dispatch(Side::kQueries, rank, whole.dout.data(), kWidth, dout.data());
  }
};

template <class Function>
void on_ranks(std::int32_t count, Function function) {
  const tilewise::LocalGroup group(count);
  std::vector<std::thread> ranks;
  for (std::int32_t rank = 0; rank < count; ++rank)
    ranks.emplace_back([&, rank] { function(rank, group.communicator(rank)); });
  for (std::thread& rank : ranks) rank.join();
}

// Returns the message of the error that a function throws; "" if it throws none.
template <class Function>
std::string error_of(Function function) {
  try {
    function();
    return "";
  } catch (const tilewise::Error& error) {
    return error.what();
  }
}

void expect_near(const Numbers& got, const Numbers& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-12) << i;
}

TEST(TokenPlan, DividesTheWholeAndPutsItTogether) {
  Whole whole;
  Numbers out(whole.out.size());
  const tilewise::LocalGroup group(kRanks);
  std::vector<std::thread> ranks;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      // snippet: token plan
      tilewise::Problem mask;  // the mask of the whole; every rank plans it once, for all layers
      mask.slices = tilewise::tensor(std::span(slices), {3, 5});
      const tilewise::TokenPlan tokens(mask, {kTokens, kTokens, kRanks});

      Rows shard(tokens.info_of(rank).q_rows);  // q, k, v, out: (rows, H, D)
      const std::vector<std::int64_t> positions = tokens.tokens_of(Side::kQueries, rank);  // RoPE
      tokens.dispatch(Side::kQueries, rank, whole.q.data(), kWidth, shard.q.data());
      tokens.dispatch(Side::kKeys, rank, whole.k.data(), kWidth, shard.k.data());
      tokens.dispatch(Side::kKeys, rank, whole.v.data(), kWidth, shard.v.data());

      tilewise::DistributedOptions options;
      options.token_plan = &tokens;
      tilewise::forward(shard.problem, options, group.communicator(rank));
      tokens.undispatch(Side::kQueries, rank, shard.out.data(), kWidth, out.data());
      // end of snippet
      EXPECT_EQ(positions.size(), static_cast<std::size_t>(tokens.info_of(rank).q_rows));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  whole.problem.slices = tilewise::tensor(std::span(slices), {3, 5});
  tilewise::forward(whole.problem);
  expect_near(out, whole.out);
}

TEST(TokenPlan, OneServesBothPassesAndManyRuns) {
  for (const std::int32_t ranks : {1, 2, 3, 5, 8}) {
    Whole whole;
    whole.problem.slices = tilewise::tensor(std::span(slices), {3, 5});
    tilewise::forward(whole.problem);
    tilewise::backward(whole.problem);
    const tilewise::TokenPlan tokens = small_plan(ranks);
    Whole gathered;
    on_ranks(ranks, [&](std::int32_t rank, const tilewise_communicator& communicator) {
      Shard shard(tokens, rank, whole);
      tilewise::DistributedOptions options;
      options.token_plan = &tokens;
      const tilewise::DistributedPlan forward(tilewise::Operation::kForward, shard.problem, options,
                                              communicator);
      const tilewise::DistributedPlan backward(tilewise::Operation::kBackward, shard.problem,
                                               options, communicator);
      EXPECT_EQ(forward.info().schedule, TILEWISE_SCHEDULE_BALANCED);
      const tilewise::Workspace one = forward.make_workspace();
      const tilewise::Workspace two = backward.make_workspace();
      for (int run = 0; run < 2; ++run) {
        forward.run(shard.problem, one);
        backward.run(shard.problem, two);
      }
      tokens.undispatch(Side::kQueries, rank, shard.out.data(), kWidth, gathered.out.data());
      tokens.undispatch(Side::kQueries, rank, shard.dq.data(), kWidth, gathered.dq.data());
      tokens.undispatch(Side::kKeys, rank, shard.dk.data(), kWidth, gathered.dk.data());
      tokens.undispatch(Side::kKeys, rank, shard.dv.data(), kWidth, gathered.dv.data());
    });
    expect_near(gathered.out, whole.out);
    expect_near(gathered.dq, whole.dq);
    expect_near(gathered.dk, whole.dk);
    expect_near(gathered.dv, whole.dv);
  }
}

TEST(TokenPlan, EveryTokenIsOnOneRank) {
  const tilewise::TokenPlan tokens = small_plan(4);
  const tilewise_token_plan_info info = tokens.info();
  EXPECT_EQ(info.size, 4);
  EXPECT_EQ(info.chunk_rows, 8);
  EXPECT_EQ(info.stages, 2);
  EXPECT_EQ(info.area, 60 * 61 / 2 + 30 * 31 / 2 + 30 * 10);
  EXPECT_GE(info.largest_area, info.area_lower_bound);
  EXPECT_DOUBLE_EQ(info.imbalance,
                   4.0 * static_cast<double>(info.largest_area) / static_cast<double>(info.area));
  std::vector<int> seen(kTokens);
  std::int64_t sent = 0;
  std::int64_t received = 0;
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    std::vector<std::int64_t> from_ranges;
    for (const tilewise_token_range& range : tokens.ranges_of(Side::kKeys, rank)) {
      EXPECT_EQ(range.stride, 1);
      for (std::int64_t token = range.begin; token < range.end; ++token)
        from_ranges.push_back(token);
    }
    EXPECT_EQ(tokens.tokens_of(Side::kKeys, rank), from_ranges);
    EXPECT_EQ(tokens.tokens_of(Side::kQueries, rank), from_ranges);
    for (const std::int64_t token : from_ranges) ++seen[static_cast<std::size_t>(token)];
    sent += tokens.info_of(rank).sent_rows;
    received += tokens.info_of(rank).received_rows;
  }
  EXPECT_EQ(seen, std::vector<int>(kTokens, 1));
  EXPECT_EQ(sent, info.received_rows);
  EXPECT_EQ(received, info.received_rows);
}

// A causal mask, with a window or documents, is the mask of the list that says the same.
TEST(TokenPlan, CausalWindowsAndDocumentsAreMasksToo) {
  tilewise::Problem causal;
  causal.causal = 1;
  EXPECT_EQ(tilewise::TokenPlan(causal, {10, 10, 2}).info().area, 55);
  causal.window_left = 2;
  EXPECT_EQ(tilewise::TokenPlan(causal, {10, 10, 2}).info().area, 27);
  std::vector<std::int64_t> starts = {0, 4, 7};
  causal.window_left = -1;
  causal.cu_seqlens_q = causal.cu_seqlens_k = tilewise::tensor(std::span(starts), {3});
  EXPECT_EQ(tilewise::TokenPlan(causal, {7, 7, 2}).info().area, 10 + 6);
  EXPECT_EQ(tilewise::TokenPlan(tilewise::Problem(), {10, 7, 2}).info().area, 70);
}

TEST(TokenPlan, BadMasksAreRefusedByName) {
  const auto refusal = [](const tilewise::Problem& mask, std::int64_t q_len,
                          std::int32_t size = 2) {
    return error_of([&] { tilewise::TokenPlan(mask, {q_len, 10, size}); });
  };
  std::vector<std::int64_t> list = {0, 5, 0, 11, 0};
  tilewise::Problem mask = mask_of(list);
  EXPECT_EQ(refusal(mask, 10), "slices[0]: k0..k1 is 0..11, must lie within 0..10");
  list = {0, 5, 0, 10, 4};
  EXPECT_EQ(refusal(mask, 10), "slices[0]: kind is 4, must be 0 to 3");
  list = {0, 5, 0, 10, 0};
  EXPECT_EQ(refusal(mask, -1), "q_len: is -1, must be at least 0");
  EXPECT_EQ(refusal(mask, 10, 0), "size: is 0, must be 1 to 65536");
  EXPECT_EQ(refusal(mask, 10, 65537), "size: is 65537, must be 1 to 65536");
  mask.causal = 1;
  EXPECT_EQ(refusal(mask, 10), "slices: given with causal; a slice list is the whole mask");
  tilewise::Problem used;
  std::vector<std::int64_t> lengths = {3};
  used.seqused_k = tilewise::tensor(std::span(lengths), {1});
  EXPECT_EQ(refusal(used, 10), "seqused_k: not supported by a token plan");
  used.seqused_k = {};
  used.cu_seqlens_q = tilewise::tensor(std::span(lengths), {1});
  EXPECT_NE(refusal(used, 10).find("cu_seqlens_k: missing"), std::string::npos);
  std::vector<std::int64_t> starts = {0, 4, 9};
  used.cu_seqlens_q = used.cu_seqlens_k = tilewise::tensor(std::span(starts), {3});
  EXPECT_EQ(refusal(used, 9),
            "cu_seqlens_k: covers the tokens 0..9, must cover 0..10 in a token plan");
  EXPECT_EQ(error_of([] {
              tilewise::TokenPlan(tilewise::Problem(), {10, 10, 2, -3});
            }),
            "chunk_rows: is -3, must be at least 0");
}

TEST(TokenPlan, BadArgumentsOfTheCFunctionsAreRefused) {
  const tilewise::TokenPlan tokens = small_plan();
  const tilewise_token_range* ranges = nullptr;
  std::int64_t count = 0;
  EXPECT_EQ(tilewise_token_plan_ranges(tokens.get(), 2, 0, &ranges, &count),
            TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "side: is 2, must be 0 (queries) or 1 (keys)");
  EXPECT_EQ(tilewise_token_plan_ranges(tokens.get(), 0, 3, &ranges, &count),
            TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "rank: is 3, must be 0 to 2");
  EXPECT_EQ(tilewise_token_plan_ranges(nullptr, 0, 0, &ranges, &count), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_token_plan_ranges(tokens.get(), 0, 0, nullptr, &count),
            TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_token_plan_positions(tokens.get(), 0, 0, nullptr), TILEWISE_INVALID_ARGUMENT);
  char byte = 0;
  EXPECT_EQ(tilewise_token_plan_dispatch(tokens.get(), 0, 0, &byte, -1, &byte),
            TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "row_bytes: is -1, must be >= 0");
  EXPECT_EQ(tilewise_token_plan_dispatch(tokens.get(), 0, 0, &byte, 1, nullptr),
            TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "rows: is NULL");
  EXPECT_EQ(tilewise_token_plan_undispatch(tokens.get(), 0, 0, &byte, 1, nullptr),
            TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "whole: is NULL");
  tilewise_token_plan_info info = {};
  EXPECT_EQ(tilewise_token_plan_describe(tokens.get(), &info), TILEWISE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tilewise_last_error()).find("tilewise_token_plan_info_init()"),
            std::string::npos);
  tilewise_token_plan* plan = nullptr;
  EXPECT_EQ(tilewise_token_plan_create(nullptr, nullptr, &plan), TILEWISE_INVALID_ARGUMENT);
  tilewise_token_plan_destroy(nullptr);
}

// What the balanced schedule does not support is refused by name, and so are schedules, lengths and
// ranks that do not fit the token plan.
TEST(TokenPlan, RefusalsOfAttentionNameTheArgument) {
  const tilewise::TokenPlan tokens = small_plan();
  Whole whole;
  Shard shard(tokens, 1, whole);
  const tilewise::LocalGroup group(kRanks);
  tilewise::DistributedOptions options;
  options.token_plan = &tokens;
  const auto refusal = [&](const tilewise::Problem& problem) {
    return error_of([&] {
      const tilewise::DistributedPlan plan(tilewise::Operation::kForward, problem, options,
                                           group.communicator(1));
    });
  };
  EXPECT_EQ(refusal(shard.problem), "");
  const struct {
    void (*change)(tilewise::Problem&);
    const char* message;
  } cases[] = {
      {[](auto& p) { p.slices = mask_of(slices).slices; },
       "slices: not supported by the balanced schedule, whose token plan has the mask"},
      {[](auto& p) { p.causal = 1; },
       "causal: not supported by the balanced schedule, whose token plan has the mask"},
      {[](auto& p) { p.window_left = 3; }, "window_left: not supported by the balanced schedule"},
      {[](auto& p) { p.cu_seqlens_q = p.lse; }, "cu_seqlens_q: not supported by the balanced"},
      {[](auto& p) { p.seqused_k = p.lse; }, "seqused_k: not supported by the balanced schedule"},
      {[](auto& p) { p.bias = p.q; }, "bias: not supported by the balanced schedule"},
      {[](auto& p) { p.mask = p.q; }, "mask: not supported by the balanced schedule"},
      {[](auto& p) { p.alibi_slopes = p.lse; }, "alibi_slopes: not supported by the balanced"},
      {[](auto& p) { p.dropout_p = 0.1; }, "dropout_p: not supported by the balanced schedule"},
      {[](auto& p) { p.accumulate = 1; }, "accumulate: not supported by the balanced schedule"},
      {[](auto& p) { p.parts = p.lse; }, "parts: not supported by the balanced schedule"},
      {[](auto& p) { p.page_table = p.lse; }, "page_table: not supported by the balanced"},
      {[](auto& p) { p.phi = p.lse; }, "phi: not supported by the balanced schedule"},
      {[](auto& p) { p.batch_invariant = 1; }, "batch_invariant: not supported by the balanced"},
      {[](auto& p) { p.v.device = TILEWISE_CUDA; }, "v: device is cuda:0, must be that of q"},
      {[](auto& p) { p.q.shape[0] = 7; }, "q: has 7 rows, must have the"},
      {[](auto& p) { p.q = tilewise_contiguous(p.q.data, TILEWISE_FP64, 4, kTwoBatches); },
       "q: has B = 2, must have 1 in the balanced schedule, or be packed"},
  };
  for (const auto& one : cases) {
    tilewise::Problem problem = shard.problem;
    one.change(problem);
    EXPECT_EQ(refusal(problem).find(one.message), 0U) << refusal(problem) << "\n" << one.message;
  }
  options.q_len = 91;
  EXPECT_EQ(refusal(shard.problem), "q_len: is 91, must be 0 or that of the token plan, 90");
  options.q_len = kTokens;
  options.schedule = tilewise::Schedule::kZigzag;
  EXPECT_EQ(refusal(shard.problem),
            "token_plan: given with the schedule zigzag, must be automatic or balanced");
  options.schedule = tilewise::Schedule::kBalanced;
  EXPECT_EQ(refusal(shard.problem), "");
  options.timeout_seconds = 0;
  EXPECT_EQ(refusal(shard.problem), "timeout_seconds: is 0, must be > 0");
  options.timeout_seconds = 10;
  options.token_plan = nullptr;
  EXPECT_EQ(refusal(shard.problem), "token_plan: is NULL, but the balanced schedule needs one");
  const tilewise::TokenPlan other = small_plan(2);
  options.token_plan = &other;
  EXPECT_EQ(refusal(shard.problem), "token_plan: is for 2 ranks, the communicator has 3");
}

// A rank with another mask, another schedule, or a refused problem is named on all ranks before
// anything is sent or written, and the communicator works afterwards.
TEST(TokenPlan, ARankThatDiffersIsNamedByAll) {
  const tilewise::TokenPlan tokens = small_plan();
  std::vector<std::int64_t> other_list = slices;
  other_list[14] = 3;
  const tilewise::TokenPlan other(mask_of(other_list), {kTokens, kTokens, kRanks, 8, 2});
  Whole whole;
  on_ranks(kRanks, [&](std::int32_t rank, const tilewise_communicator& communicator) {
    Shard shard(tokens, rank, whole);
    const auto message = [&](int fault) {
      tilewise::DistributedOptions options;
      options.timeout_seconds = 30;
      options.token_plan = &tokens;
      tilewise::Problem problem = shard.problem;
      std::unique_ptr<Shard> changed;
      if (rank == 1 && fault == 0) {
        changed = std::make_unique<Shard>(other, rank, whole);
        problem = changed->problem;
        options.token_plan = &other;
      }
      if (rank == 1 && fault == 1) problem.causal = 1;
      if (rank == 1 && fault == 2) problem.softmax_scale = 2;
      return error_of([&] { tilewise::forward(problem, options, communicator); });
    };
    EXPECT_EQ(
        message(0),
        "rank 1 passes another problem: the contents of the plan differ from those on rank 0");
    EXPECT_EQ(message(1), rank == 1 ? "causal: not supported by the balanced schedule, whose token "
                                      "plan has the mask"
                                    : "rank 1 has refused its problem: UNSUPPORTED");
    EXPECT_EQ(message(2).find("rank 1 passes another problem: softmax_scale is 2"), 0U);
    for (const double number : shard.out) ASSERT_TRUE(std::isnan(number));
    EXPECT_EQ(message(3), "");
    for (const double number : shard.out) ASSERT_FALSE(std::isnan(number));
  });
}

// A rank that never calls is named by those that wait for it, within the time limit.
TEST(TokenPlan, ARankThatNeverCallsIsNamed) {
  const tilewise::TokenPlan tokens = small_plan();
  Whole whole;
  on_ranks(kRanks, [&](std::int32_t rank, const tilewise_communicator& communicator) {
    if (rank == 2) return;
    Shard shard(tokens, rank, whole);
    tilewise::DistributedOptions options;
    options.timeout_seconds = 0.3;
    options.token_plan = &tokens;
    const std::string message =
        error_of([&] { tilewise::forward(shard.problem, options, communicator); });
    EXPECT_NE(message.find("rank 2 of 3 failed"), std::string::npos) << message;
  });
}

}  // namespace
