#include "distributed/ranked_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cuda/host/runtime.h"
#include "cuda/host/streams.h"
#include "distributed/schedule.h"
#include "problem/tensors.h"
#include "verify/device_copy.h"

namespace tilewise::tests {
namespace {

using verify::TensorOwner;

using Member = tilewise_tensor tilewise_problem::*;
constexpr Member kQueryRows[] = {&tilewise_problem::q, &tilewise_problem::dout,
                                 &tilewise_problem::out, &tilewise_problem::dq};
constexpr Member kKeyRows[] = {&tilewise_problem::k, &tilewise_problem::v, &tilewise_problem::dk,
                               &tilewise_problem::dv};
constexpr Member kStatistics[] = {&tilewise_problem::lse, &tilewise_problem::dlse};
constexpr Member kScores[] = {&tilewise_problem::bias, &tilewise_problem::mask,
                              &tilewise_problem::dbias};
constexpr Member kHeadSums[] = {&tilewise_problem::dsink, &tilewise_problem::dalibi_slopes};

int row_dimension(const tilewise_tensor& tensor, std::int32_t layout) {
  return tensor.rank == 3 ? 0 : layout == TILEWISE_BHSD ? 2 : 1;
}

// Elements between the rows of a rank's tensors, which no run touches.
constexpr std::int64_t kGap = 3;

bool gaps_are_intact(const tilewise_tensor& tensor) {
  if (tensor.data == nullptr) return true;
  tilewise_tensor gaps = tensor;
  const std::int64_t size = problem::dtype_size(tensor.dtype);
  gaps.data = static_cast<char*>(tensor.data) + tensor.shape[tensor.rank - 1] * size;
  gaps.shape[tensor.rank - 1] = kGap;
  bool intact = true;
  verify::for_each_element(gaps, [&](std::int64_t, std::int64_t offset) {
    const char* const bytes = static_cast<const char*>(gaps.data) + offset * size;
    intact = intact && std::all_of(bytes, bytes + size, [](char b) { return b == '\xFF'; });
  });
  return intact;
}

// Copies the elements of `part`, whose index in one dimension stands for tokens[index] of `whole`;
// `to_whole` copies the other way.
void copy_tokens(const tilewise_tensor& whole, const tilewise_tensor& part, int dimension,
                 const std::vector<std::int64_t>& tokens, bool to_whole) {
  const std::int64_t size = problem::dtype_size(whole.dtype);
  std::int64_t index[TILEWISE_MAX_RANK] = {0, 0, 0, 0};
  const std::int64_t count = verify::element_count(part);
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t part_offset = 0;
    std::int64_t whole_offset = 0;
    for (int d = 0; d < part.rank; ++d) {
      part_offset += index[d] * part.strides[d];
      whole_offset += (d == dimension ? tokens[static_cast<std::size_t>(index[d])] : index[d]) *
                      whole.strides[d];
    }
    char* const in_part = static_cast<char*>(part.data) + part_offset * size;
    char* const in_whole = static_cast<char*>(whole.data) + whole_offset * size;
    std::memcpy(to_whole ? in_whole : in_part, to_whole ? in_part : in_whole,
                static_cast<std::size_t>(size));
    for (int d = part.rank - 1; d >= 0 && ++index[d] == part.shape[d]; --d) index[d] = 0;
  }
}

}  // namespace

RankedRun::RankedRun(const tilewise_problem& whole, const RankedSetup& setup)
    : whole_(whole),
      setup_(setup),
      group_(setup.size),
      ranks_(static_cast<std::size_t>(setup.size)),
      results_(whole) {
  for (const problem::NamedTensor& named : problem::kTensors) {
    if (named.forward != problem::Role::kOutput && named.backward != problem::Role::kOutput)
      continue;
    const tilewise_tensor& tensor = whole.*named.member;
    if (!problem::present(tensor)) continue;
    std::int32_t dtype = tensor.dtype;
    for (const Member sum : {&tilewise_problem::dbias, kHeadSums[0], kHeadSums[1]}) {
      if (named.member == sum)  // shows all bits of the sums
        dtype = whole.q.dtype == TILEWISE_FP64 ? TILEWISE_FP64 : TILEWISE_FP32;
    }
    results_.*named.member = owner_.make(dtype, tensor.rank, tensor.shape);
  }
  if (!setup.devices.empty() && !setup.communicator) {
    EXPECT_EQ(group_.use_devices(setup.devices), TILEWISE_OK) << problem::message();
  }
  if (setup_.schedule == TILEWISE_SCHEDULE_AUTOMATIC) {
    const tilewise_distributed_options chosen = options();
    EXPECT_EQ(tilewise_distributed_schedule(&whole, &chosen, setup.size, &setup_.schedule),
              TILEWISE_OK);
  }
  if (setup_.schedule == TILEWISE_SCHEDULE_BALANCED) make_token_plan();
  for (std::int32_t rank = 0; rank < setup.size; ++rank) make_rank(rank);
}

void RankedRun::make_token_plan() {
  tilewise_token_plan_options chosen;
  tilewise_token_plan_options_init(&chosen);
  chosen.q_len = options().q_len;
  chosen.k_len = options().k_len;
  chosen.size = setup_.size;
  chosen.chunk_rows = setup_.chunk_rows;
  chosen.stages = setup_.stages;
  tilewise_token_plan* plan = nullptr;
  EXPECT_EQ(tilewise_token_plan_create(&whole_, &chosen, &plan), TILEWISE_OK) << problem::message();
  token_plan_.reset(plan);
  whole_.slices = whole_.cu_seqlens_q = whole_.cu_seqlens_k = {};
  whole_.causal = 0;
  whole_.window_left = whole_.window_right = -1;
}

RankedRun::Tokens RankedRun::tokens_of(bool keys, std::int32_t rank) const {
  Tokens tokens;
  if (token_plan_ != nullptr) {
    tilewise_token_plan_rank_info info;
    tilewise_token_plan_rank_info_init(&info);
    EXPECT_EQ(tilewise_token_plan_describe_rank(token_plan(), rank, &info), TILEWISE_OK);
    tokens.resize(static_cast<std::size_t>(keys ? info.k_rows : info.q_rows));
    EXPECT_EQ(tilewise_token_plan_positions(token_plan(), keys ? TILEWISE_KEYS : TILEWISE_QUERIES,
                                            rank, tokens.data()),
              TILEWISE_OK);
    return tokens;
  }
  tilewise_token_range ranges[TILEWISE_MAX_TOKEN_RANGES];
  std::int32_t count = 0;
  EXPECT_EQ(tilewise_token_ranges(setup_.schedule, keys ? options().k_len : options().q_len,
                                  setup_.size, rank, ranges, &count),
            TILEWISE_OK);
  for (std::int32_t r = 0; r < count; ++r) {
    for (std::int64_t t = ranges[r].begin; t < ranges[r].end; t += ranges[r].stride)
      tokens.push_back(t);
  }
  return tokens;
}

tilewise_distributed_options RankedRun::options() const {
  tilewise_distributed_options options;
  tilewise_distributed_options_init(&options);
  options.q_len = whole_.q.shape[row_dimension(whole_.q, whole_.layout)];
  options.k_len = whole_.k.shape[row_dimension(whole_.k, whole_.layout)];
  options.schedule = setup_.schedule;
  options.timeout_seconds = setup_.timeout_seconds;
  options.token_plan = token_plan();
  return options;
}

tilewise_tensor RankedRun::cut(Rank& rank, const tilewise_tensor& tensor, int dimension,
                               const Tokens& tokens) {
  const int last = tensor.rank - 1;
  std::int64_t shape[TILEWISE_MAX_RANK];
  std::copy(tensor.shape, tensor.shape + tensor.rank, shape);
  shape[dimension] = static_cast<std::int64_t>(tokens.size());
  std::int64_t elements = 1;
  for (int d = 0; d < tensor.rank; ++d) elements *= shape[d] + (d == last ? kGap : 0);
  rank.bytes.push_back(std::make_unique<verify::Memory>(
      static_cast<std::size_t>(elements * problem::dtype_size(tensor.dtype))));
  shape[last] += kGap;
  tilewise_tensor part =
      tilewise_contiguous(rank.bytes.back()->data(), tensor.dtype, tensor.rank, shape);
  part.shape[last] -= kGap;
  if (verify::element_count(part) == 0) part.data = nullptr;
  copy_tokens(tensor, part, dimension, tokens, false);
  return part;
}

// Cuts every tensor that has rows for tokens.
void RankedRun::cut_all(Rank& rank, const tilewise_problem& whole, tilewise_problem& part) {
  const std::int64_t q_len = options().q_len;
  const auto cut_members = [&](const auto& members, const Tokens& tokens, auto dimension_of) {
    for (const Member member : members) {
      const tilewise_tensor& tensor = whole.*member;
      const int dimension = dimension_of(tensor);
      if (problem::present(tensor) && dimension >= 0)
        part.*member = cut(rank, tensor, dimension, tokens);
    }
  };
  const auto rows = [&](const tilewise_tensor& t) { return row_dimension(t, whole_.layout); };
  cut_members(kQueryRows, rank.queries, rows);
  cut_members(kKeyRows, rank.keys, rows);
  cut_members(kStatistics, rank.queries, [](const tilewise_tensor& t) { return t.rank - 1; });
  cut_members(kScores, rank.queries, [&](const tilewise_tensor& t) {
    return t.rank >= 2 && t.shape[t.rank - 2] == q_len ? t.rank - 2 : -1;
  });
}

void RankedRun::make_rank(std::int32_t number) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  rank.queries = tokens_of(false, number);
  rank.keys = tokens_of(true, number);
  rank.problem = whole_;
  rank.communicator =
      setup_.communicator ? setup_.communicator(number) : group_.communicator(number);
  tilewise_distributed_info_init(&rank.info);
  if (setup_.wrap) {
    rank.wrapper = setup_.wrap(rank.communicator);
    rank.communicator = rank.wrapper->communicator();
  }
  cut_all(rank, results_, rank.problem);
  for (const Member member : kHeadSums) {
    const tilewise_tensor& sum = results_.*member;
    if (problem::present(sum))
      rank.problem.*member = rank.owner.make(sum.dtype, sum.rank, sum.shape);
  }
}

void RankedRun::set_forward_results(const tilewise_problem& whole) {
  for (Rank& rank : ranks_) {
    copy_tokens(whole.out, rank.problem.out, row_dimension(whole.out, whole.layout), rank.queries,
                false);
    copy_tokens(whole.lse, rank.problem.lse, whole.lse.rank - 1, rank.queries, false);
  }
}

// Runs the plan twice on copies in device memory, on a stream of its own: the second run compares
// no problems, and begins while the first one may still work.
Status RankedRun::run_on_device(Rank& rank, Operation operation, std::int32_t device) {
  const tilewise_distributed_options chosen = options();
  verify::DeviceCopy copy(operation, rank.problem, device);
  cuda::Exchange own(device);
  tilewise_executor executor;
  tilewise_executor_init(&executor);
  executor.stream = own.stream();
  tilewise_distributed_plan* plan = nullptr;
  Status status = tilewise_distributed_plan_create(
      static_cast<std::int32_t>(operation), &copy.request(), &chosen, &rank.communicator, &plan);
  if (status != TILEWISE_OK) return status;
  std::size_t bytes = 0;
  tilewise_distributed_plan_workspace(plan, &bytes, nullptr);
  constexpr std::int64_t kGuard = 256;
  const auto size = static_cast<std::int64_t>(bytes);
  const verify::DeviceMemory memory(device, size + kGuard);
  EXPECT_EQ(cuda::synchronise(device, nullptr), TILEWISE_OK);  // the fill, on another stream
  for (int run = 0; run < 2 && status == TILEWISE_OK; ++run) {
    status = tilewise_distributed_plan_run(plan, &copy.request(), memory.data(), bytes, &executor);
  }
  const Outcome outcome = outcome_of(status);
  EXPECT_EQ(cuda::synchronise(device, executor.stream), TILEWISE_OK) << problem::message();
  tilewise_distributed_plan_info(plan, &rank.info);
  tilewise_distributed_plan_destroy(plan);
  EXPECT_EQ(copy.fetch(), "");
  EXPECT_TRUE(copy.inputs_are_intact());
  std::vector<std::byte> guard(kGuard);
  EXPECT_EQ(cuda::copy(device, guard.data(), memory.data() + size, kGuard, nullptr), TILEWISE_OK);
  EXPECT_TRUE(std::all_of(guard.begin(), guard.end(), [](std::byte b) {
    return b == std::byte{0xFF};
  })) << "wrote beyond the workspace";
  return outcome.status == TILEWISE_OK
             ? outcome.status
             : problem::fail(outcome.status, "%s", outcome.message.c_str());
}

Outcome RankedRun::run_rank(Rank& rank, Operation operation) {
  if (!setup_.devices.empty()) {
    const auto number = static_cast<std::size_t>(&rank - ranks_.data());
    return outcome_of(run_on_device(rank, operation, setup_.devices[number]));
  }
  const tilewise_distributed_options chosen = options();
  tilewise_distributed_plan* plan = nullptr;
  Status status = tilewise_distributed_plan_create(
      static_cast<std::int32_t>(operation), &rank.problem, &chosen, &rank.communicator, &plan);
  if (status == TILEWISE_OK) {
    std::size_t bytes = 0;
    tilewise_distributed_plan_workspace(plan, &bytes, nullptr);
    constexpr std::size_t kGuard = 256;
    const verify::Memory memory(bytes + kGuard);
    status =
        tilewise_distributed_plan_run(plan, &rank.problem, memory.data(), bytes, setup_.executor);
    const std::byte* const guard = memory.data() + bytes;
    EXPECT_TRUE(std::all_of(guard, guard + kGuard, [](std::byte b) {
      return b == std::byte{0xFF};
    })) << "wrote beyond the workspace";
    tilewise_distributed_plan_info(plan, &rank.info);
  }
  const Outcome outcome = outcome_of(status);
  tilewise_distributed_plan_destroy(plan);
  return outcome;
}

Outcome RankedRun::run_one(std::int32_t rank, Operation operation,
                           const tilewise_communicator& communicator) {
  Rank& own = ranks_[static_cast<std::size_t>(rank)];
  own.communicator = communicator;
  return run_rank(own, operation);
}

tilewise_problem RankedRun::expected(std::int32_t rank, const tilewise_problem& whole) {
  tilewise_problem part = whole;
  cut_all(ranks_[static_cast<std::size_t>(rank)], whole, part);
  return part;
}

std::vector<Outcome> RankedRun::run(Operation operation) {
  std::vector<Outcome> outcomes(ranks_.size());
  run_ranks(setup_.size, [&](std::int32_t number) {
    const auto r = static_cast<std::size_t>(number);
    outcomes[r] = run_rank(ranks_[r], operation);
  });
  collect(operation);
  return outcomes;
}

void RankedRun::collect(Operation operation) {
  const auto put = [&](Member member, int dimension, const Rank& rank, const Tokens& tokens) {
    const tilewise_tensor& tensor = results_.*member;
    if (!problem::present(tensor)) return;
    copy_tokens(tensor, rank.problem.*member, dimension, tokens, true);
    EXPECT_TRUE(gaps_are_intact(rank.problem.*member)) << "wrote between rows";
  };
  const int rows = row_dimension(results_.q, whole_.layout);
  for (const Rank& rank : ranks_) {
    if (operation == Operation::kForward) {
      put(&tilewise_problem::out, rows, rank, rank.queries);
      put(&tilewise_problem::lse, results_.lse.rank - 1, rank, rank.queries);
      continue;
    }
    put(&tilewise_problem::dq, rows, rank, rank.queries);
    put(&tilewise_problem::dk, row_dimension(results_.k, whole_.layout), rank, rank.keys);
    put(&tilewise_problem::dv, row_dimension(results_.k, whole_.layout), rank, rank.keys);
    put(&tilewise_problem::dbias, results_.dbias.rank - 2, rank, rank.queries);
    for (const Member member : kHeadSums) {
      const tilewise_tensor& sum = rank.problem.*member;
      if (!problem::present(sum)) continue;
      const auto bytes =
          static_cast<std::size_t>(verify::element_count(sum) * problem::dtype_size(sum.dtype));
      const tilewise_tensor& result = results_.*member;
      if (&rank == &ranks_[0]) std::memcpy(result.data, sum.data, bytes);
      EXPECT_EQ(std::memcmp(result.data, sum.data, bytes), 0) << "sums differ between ranks";
    }
  }
}

double largest_difference(const tilewise_tensor& a, const tilewise_tensor& b) {
  double largest = 0;
  std::vector<double> expected;
  verify::for_each_element(
      b, [&](std::int64_t, std::int64_t at) { expected.push_back(verify::read_element(b, at)); });
  verify::for_each_element(a, [&](std::int64_t i, std::int64_t at) {
    const double x = verify::read_element(a, at);
    const double y = expected[static_cast<std::size_t>(i)];
    if (x == y || (std::isnan(x) && std::isnan(y))) return;
    const double difference = std::fabs(x - y) / std::max(1.0, std::fabs(y));
    largest = std::isfinite(difference) ? std::max(largest, difference)
                                        : std::numeric_limits<double>::infinity();
  });
  return largest;
}

void expect_equal_results(Operation operation, const tilewise_problem& got,
                          const tilewise_problem& expected, double limit, const std::string& what) {
  for (const problem::NamedTensor& named : problem::kTensors) {
    if (named.role(operation) != problem::Role::kOutput) continue;
    const tilewise_tensor& tensor = got.*named.member;
    if (!problem::present(tensor)) continue;
    const tilewise_tensor& other = expected.*named.member;
    const bool rounded = other.dtype == TILEWISE_FP32 && tensor.dtype == TILEWISE_FP64;
    EXPECT_LE(largest_difference(tensor, other), rounded ? std::max(limit, 1e-7) : limit)
        << named.name << ": " << what;
  }
}

}  // namespace tilewise::tests
