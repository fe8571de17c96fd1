#include "distributed/magi/ranks.h"

#include "distributed/agreement.h"
#include "distributed/magi/shard.h"

namespace tilewise::tests {

using distributed::magi::Attention;
using distributed::magi::AttentionRun;
using distributed::magi::Plan;

namespace {

constexpr tilewise_tensor tilewise_problem::*kQueryRows[] = {
    &tilewise_problem::q,  &tilewise_problem::out, &tilewise_problem::dout,
    &tilewise_problem::dq, &tilewise_problem::lse, &tilewise_problem::dlse};
constexpr tilewise_tensor tilewise_problem::*kKeyRows[] = {
    &tilewise_problem::k, &tilewise_problem::v, &tilewise_problem::dk, &tilewise_problem::dv};

// A communicator that counts what its rank sends.
struct Counting {
  tilewise_communicator inner;
  Sent* sent;

  static tilewise_status exchange(void* self, const tilewise_exchange* request,
                                  std::int32_t* failed_rank) {
    const Counting& counting = *static_cast<const Counting*>(self);
    for (std::int32_t m = 0; m < request->send_count; ++m) {
      counting.sent->bytes += request->sends[m].bytes;
      ++counting.sent->messages;
    }
    return counting.inner.exchange(counting.inner.self, request, failed_rank);
  }
  static void abort(void* self) {
    const Counting& counting = *static_cast<const Counting*>(self);
    counting.inner.abort(counting.inner.self);
  }
};

problem::Status run_rank(problem::Operation operation, const tilewise_problem& problem,
                         const Plan& plan, const tilewise_communicator& communicator) {
  Attention attention;
  distributed::magi::AttentionOptions options;
  options.kernels.max_concurrency = 1;
  const problem::Status planned = distributed::magi::make_attention(
      operation, problem, plan, communicator.rank, options, &attention);
  if (planned != TILEWISE_OK)
    return distributed::refuse(communicator, options.timeout_seconds, planned);
  const verify::Memory workspace(static_cast<std::size_t>(attention.memory.bytes));
  plan::Pool pool(1);
  const tilewise_executor executor = pool.executor();
  return distributed::magi::run_attention(attention, communicator, problem,
                                          {workspace.data(), workspace.bytes(), &executor});
}

}  // namespace

RankTensors::RankTensors(problem::Operation operation, const tilewise_problem& whole,
                         const Plan& plan, std::int32_t rank)
    : problem(whole),
      q_rows_(distributed::magi::positions(plan.queries[static_cast<std::size_t>(rank)])),
      k_rows_(distributed::magi::positions(plan.keys[static_cast<std::size_t>(rank)])) {
  problem.slices = {};
  for (const problem::NamedTensor& tensor : problem::kTensors) {
    const std::vector<std::int64_t>* const rows = rows_of(tensor.member);
    const bool output = tensor.role(operation) == problem::Role::kOutput;
    tilewise_tensor& own = problem.*tensor.member;
    if (!problem::present(own) || (rows == nullptr && !output)) continue;
    std::int64_t shape[] = {own.shape[0], own.shape[1], own.shape[2]};
    if (rows != nullptr) shape[own.rank == 2 ? 1 : 0] = static_cast<std::int64_t>(rows->size());
    own = owner_.make(own.dtype, own.rank, shape);
    if (!output) copy(tensor.member, whole, true);
  }
}

const std::vector<std::int64_t>* RankTensors::rows_of(Member member) const {
  for (const Member other : kQueryRows) {
    if (member == other) return &q_rows_;
  }
  for (const Member other : kKeyRows) {
    if (member == other) return &k_rows_;
  }
  return nullptr;
}

void RankTensors::copy(Member member, const tilewise_problem& whole, bool from_whole) const {
  const tilewise_tensor& own = problem.*member;
  const tilewise_tensor& other = whole.*member;
  const std::vector<std::int64_t>* const rows = rows_of(member);
  const int row_dimension = own.rank == 2 ? 1 : 0;  // lse is (H, T)
  verify::for_each_element(own, [&](std::int64_t index, std::int64_t offset) {
    std::int64_t at = 0;
    for (int d = own.rank - 1; d >= 0; --d) {
      std::int64_t i = index % own.shape[d];
      index /= own.shape[d];
      if (rows != nullptr && d == row_dimension) i = (*rows)[static_cast<std::size_t>(i)];
      at += i * other.strides[d];
    }
    if (from_whole) {
      verify::write_element(own, offset, verify::read_element(other, at));
    } else {
      verify::write_element(other, at, verify::read_element(own, offset));
    }
  });
}

void RankTensors::gather(problem::Operation operation, const tilewise_problem& whole) const {
  for (const problem::NamedTensor& tensor : problem::kTensors) {
    if (tensor.role(operation) == problem::Role::kOutput &&
        problem::present(problem.*tensor.member))
      copy(tensor.member, whole, false);
  }
}

Plan plan_of(const verify::Case& description, const distributed::magi::PlanOptions& options) {
  std::vector<distributed::magi::Slice> slices;
  for (const verify::Slice& s : description.slices)
    slices.push_back({s[0], s[1], s[2], s[3], s[4], s[5]});
  distributed::magi::Mask mask;
  EXPECT_EQ(mask_of_slices(slices, description.q_len, description.k_len, description.heads, &mask),
            TILEWISE_OK);
  Plan plan;
  EXPECT_EQ(make_plan(mask, options, &plan), TILEWISE_OK);
  return plan;
}

void run_ranks(problem::Operation operation, const tilewise_problem& whole, const Plan& plan,
               bool overlaps, Sent* sent) {
  const auto size = static_cast<std::int32_t>(plan.ranks);
  distributed::LocalGroup group(size);
  Sent unused;
  std::vector<std::string> failures(static_cast<std::size_t>(size));
  std::vector<std::unique_ptr<RankTensors>> tensors;
  for (std::int32_t rank = 0; rank < size; ++rank)
    tensors.push_back(std::make_unique<RankTensors>(operation, whole, plan, rank));
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Counting counting = {group.communicator(rank), sent != nullptr ? sent : &unused};
      tilewise_communicator communicator = counting.inner;
      communicator.self = &counting;
      communicator.exchange = Counting::exchange;
      communicator.abort = Counting::abort;
      communicator.calls_from_any_thread = overlaps ? 1 : 0;
      const auto r = static_cast<std::size_t>(rank);
      if (run_rank(operation, tensors[r]->problem, plan, communicator) != TILEWISE_OK)
        failures[r] = problem::message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) ASSERT_EQ(failure, "");
  for (const auto& rank : tensors) rank->gather(operation, whole);
}

}  // namespace tilewise::tests
