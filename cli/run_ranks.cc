#include "run_ranks.h"

#include <fmt/format.h>
#include <tilewise/tilewise_distributed.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "cuda/host/runtime.h"
#include "distributed/schedule.h"
#include "program.h"
#include "schedule_flag.h"
#include "shard.h"
#include "verify/device_copy.h"

namespace tilewise::cli {

const tilewise_communicator* process_ranks = nullptr;

namespace {

using nlohmann::json;
using PassOperation = problem::Operation;

constexpr const char* kAutomatic = "automatic";
constexpr std::int64_t kMostRanks = 256;

// A rank's report on a pass; ranks of MPI send it as it is.
struct RankReport {
  double seconds;
  tilewise_distributed_info info;
};

void check_status(tilewise_status status) {
  if (status != TILEWISE_OK) throw UsageError(tilewise_last_error());
}

struct Setup {
  tilewise_distributed_options options;
  std::optional<TokenPlan> token_plan;  // present for the balanced schedule
  std::string kernel;
  std::int32_t size;

  Tokens tokens_of(std::int32_t rank) const {
    if (token_plan) {
      return {token_plan->tokens_of(Side::kQueries, rank),
              token_plan->tokens_of(Side::kKeys, rank)};
    }
    const auto schedule = static_cast<Schedule>(options.schedule);
    return {tilewise::tokens_of(schedule, options.q_len, size, rank),
            tilewise::tokens_of(schedule, options.k_len, size, rank)};
  }
};

TokenPlan token_plan_of(const tilewise_problem& whole, const TokenPlanOptions& options) {
  try {
    return TokenPlan(whole, options);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

Setup read_setup(const Flags& flags, const tilewise_problem& whole, const Executor& executor) {
  Setup setup;
  setup.size = process_ranks != nullptr
                   ? process_ranks->size
                   : static_cast<std::int32_t>(flags.integer("ranks", 1, kMostRanks, 1));
  setup.kernel = flags.text("kernel");
  tilewise_distributed_options_init(&setup.options);
  setup.options.q_len = query_rows(whole);
  setup.options.k_len = key_rows(whole);
  setup.options.schedule = schedule_flag(flags, kAutomatic);
  setup.options.max_concurrency = executor.threads();
  if (setup.options.schedule == TILEWISE_SCHEDULE_AUTOMATIC) {
    check_status(
        tilewise_distributed_schedule(&whole, &setup.options, setup.size, &setup.options.schedule));
  } else if (setup.options.schedule == TILEWISE_SCHEDULE_BALANCED) {
    setup.token_plan = token_plan_of(whole, {setup.options.q_len, setup.options.k_len, setup.size});
    setup.options.token_plan = setup.token_plan->get();
  }
  return setup;
}

// The mask is in the token plan.
tilewise_problem without_mask(const tilewise_problem& request) {
  tilewise_problem problem = request;
  problem.slices = problem.cu_seqlens_q = problem.cu_seqlens_k = {};
  problem.causal = 0;
  problem.window_left = problem.window_right = -1;
  return problem;
}

using OwnedPlan = std::unique_ptr<tilewise_distributed_plan, void (*)(tilewise_distributed_plan*)>;

// Runs a plan on copies of the rank's tensors on the communicator's device. Returns the seconds.
double run_on_device(const OwnedPlan& plan, std::size_t bytes, verify::DeviceCopy& copy,
                     std::int32_t device, const Executor& executor) {
  const verify::DeviceMemory workspace(device, static_cast<std::int64_t>(bytes) + 1);
  check_status(cuda::synchronise(device, nullptr));
  const double start = now_seconds();
  check_status(tilewise_distributed_plan_run(plan.get(), &copy.request(), workspace.data(), bytes,
                                             executor.get()));
  check_status(cuda::synchronise(device, nullptr));
  const double seconds = now_seconds() - start;
  if (const std::string damage = copy.fetch(); !damage.empty()) throw std::runtime_error(damage);
  return seconds;
}

double run_on_host(const OwnedPlan& plan, std::size_t bytes, const tilewise_problem& problem,
                   const Executor& executor) {
  const Workspace workspace(static_cast<std::int64_t>(bytes));
  const double start = now_seconds();
  check_status(
      tilewise_distributed_plan_run(plan.get(), &problem, workspace.data(), bytes, executor.get()));
  return now_seconds() - start;
}

RankReport run_pass(PassOperation operation, const Setup& setup, const Shard& shard,
                    const tilewise_communicator& communicator, const Executor& executor) {
  tilewise_distributed_options options = setup.options;
  options.kernel = setup.kernel.empty() ? nullptr : setup.kernel.c_str();
  const std::int32_t device = communicator.device_index;
  std::optional<verify::DeviceCopy> copy;
  if (executor.on_cuda()) copy.emplace(operation, shard.problem(), device);
  const tilewise_problem& problem = copy ? copy->request() : shard.problem();
  tilewise_distributed_plan* made = nullptr;
  check_status(tilewise_distributed_plan_create(static_cast<std::int32_t>(operation), &problem,
                                                &options, &communicator, &made));
  const OwnedPlan plan(made, tilewise_distributed_plan_destroy);
  std::size_t bytes = 0;
  tilewise_distributed_plan_workspace(made, &bytes, nullptr);
  RankReport report;
  report.seconds = copy ? run_on_device(plan, bytes, *copy, device, executor)
                        : run_on_host(plan, bytes, problem, executor);
  tilewise_distributed_info_init(&report.info);
  check_status(tilewise_distributed_plan_info(made, &report.info));
  return report;
}

// The ranks of this process take the devices in turn.
LocalGroup group_of(const Setup& setup, const Executor& executor) {
  if (!executor.on_cuda()) return LocalGroup(setup.size);
  std::vector<std::int32_t> devices;
  for (std::int32_t rank = 0; rank < setup.size; ++rank)
    devices.push_back(rank % cuda::device_count());
  return LocalGroup(std::span<const std::int32_t>(devices));
}

// The reports of all ranks, pass after pass.
using Reports = std::vector<std::vector<RankReport>>;

Reports run_threads(const Setup& setup, const tilewise_problem& whole,
                    const std::vector<PassOperation>& passes, const Executor& executor) {
  const LocalGroup group = group_of(setup, executor);
  std::vector<std::unique_ptr<Shard>> shards;
  for (std::int32_t rank = 0; rank < setup.size; ++rank)
    shards.push_back(std::make_unique<Shard>(whole, setup.tokens_of(rank)));
  Reports reports(passes.size(), std::vector<RankReport>(shards.size()));
  std::mutex mutex;
  std::string error;  // of the rank that failed first
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const tilewise_communicator communicator =
          group.communicator(static_cast<std::int32_t>(rank));
      try {
        for (std::size_t p = 0; p < passes.size(); ++p)
          reports[p][rank] = run_pass(passes[p], setup, *shards[rank], communicator, executor);
      } catch (const std::exception& exception) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (error.empty()) error = exception.what();
        communicator.abort(communicator.self);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!error.empty()) throw UsageError(error);
  for (const PassOperation operation : passes) {
    for (const auto& shard : shards) shard->put(operation, whole);
  }
  return reports;
}

void send_or_receive(std::vector<tilewise_message> messages, bool sends) {
  std::int32_t failed = -1;
  const auto count = static_cast<std::int32_t>(messages.size());
  const tilewise_exchange request = {messages.data(), messages.data(), sends ? count : 0,
                                     sends ? 0 : count, INFINITY};
  check_status(process_ranks->exchange(process_ranks->self, &request, &failed));
}

// The outputs of a pass with the report of the rank.
std::vector<tilewise_message> results_of(Shard& shard, PassOperation operation, std::int32_t peer,
                                         RankReport* report) {
  std::vector<tilewise_message> messages = shard.output_messages(operation, peer);
  messages.push_back({report, sizeof(*report), peer, static_cast<std::int32_t>(messages.size())});
  return messages;
}

// Joins the processes over NCCL, each with the device of its number, of those of a machine that
// every process sees.
NcclCommunicator join_nccl() {
  NcclCommunicator::Id id = {};
  std::vector<tilewise_message> messages;
  if (process_ranks->rank == 0) check_status(tilewise_nccl_unique_id(id.data()));
  for (std::int32_t peer = 1; peer < process_ranks->size; ++peer) {
    if (process_ranks->rank == 0 || process_ranks->rank == peer) {
      messages.push_back({id.data(), static_cast<std::int64_t>(id.size()),
                          process_ranks->rank == 0 ? peer : 0, 0});
    }
  }
  send_or_receive(messages, process_ranks->rank == 0);
  const std::int32_t device = process_ranks->rank % cuda::device_count();
  try {
    return NcclCommunicator(id, process_ranks->size, process_ranks->rank, device);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

// Runs this process's rank. The first rank collects the results of the others.
Reports run_process(const Setup& setup, const tilewise_problem& whole,
                    const std::vector<PassOperation>& passes, const Executor& executor) {
  const std::int32_t rank = process_ranks->rank;
  Reports reports(passes.size(), std::vector<RankReport>(static_cast<std::size_t>(setup.size)));
  Shard own(whole, setup.tokens_of(rank));
  std::optional<NcclCommunicator> nccl;
  if (executor.on_cuda()) nccl.emplace(join_nccl());
  for (std::size_t p = 0; p < passes.size(); ++p) {
    RankReport& report = reports[p][static_cast<std::size_t>(rank)];
    report =
        run_pass(passes[p], setup, own, nccl ? nccl->communicator() : *process_ranks, executor);
    if (rank != 0) send_or_receive(results_of(own, passes[p], 0, &report), true);
    if (rank != 0) continue;
    own.put(passes[p], whole);
    for (std::int32_t other = 1; other < setup.size; ++other) {
      Shard theirs(whole, setup.tokens_of(other));
      send_or_receive(
          results_of(theirs, passes[p], other, &reports[p][static_cast<std::size_t>(other)]),
          false);
      theirs.put(passes[p], whole);
    }
  }
  return reports;
}

json report_of(const std::vector<RankReport>& ranks) {
  json pass = {{"seconds", 0.0}, {"ranks", json::array()}};
  double slowest = 0;
  for (const RankReport& rank : ranks) {
    slowest = std::max(slowest, rank.seconds);
    pass["ranks"].push_back({{"seconds", rank.seconds},
                             {"pairs", rank.info.pairs},
                             {"sent_messages", rank.info.sent_messages},
                             {"sent_bytes", rank.info.sent_bytes}});
  }
  pass["seconds"] = slowest;
  return pass;
}

}  // namespace

void add_rank_flags(Flags& flags) {
  flags.begin_group("Ranks");
  flags.add_value(
      "ranks", "N",
      "divide the sequences between N ranks, each a thread; with --device cuda they take "
      "the GPUs in turn");
  flags.add_value("schedule", kAutomatic + ("|" + std::string(kScheduleNames)),
                  "which tokens a rank holds; balanced: any mask, without bias and dropout");
}

bool runs_on_ranks(const Flags& flags) {
  if (process_ranks != nullptr && flags.given("ranks"))
    throw UsageError("--ranks: mpirun says how many ranks there are");
  if (process_ranks == nullptr && !flags.given("ranks") && flags.given("schedule"))
    throw UsageError("--schedule: needs --ranks N, or tilewise-mpi");
  return process_ranks != nullptr || flags.given("ranks");
}

bool writes_results() { return process_ranks == nullptr || process_ranks->rank == 0; }

json run_on_ranks(const Flags& flags, const tilewise_problem& request,
                  const std::vector<PassOperation>& passes, const Executor& executor) {
  const Setup setup = read_setup(flags, request, executor);
  const tilewise_problem whole = setup.token_plan ? without_mask(request) : request;
  const Reports reports = process_ranks != nullptr ? run_process(setup, whole, passes, executor)
                                                   : run_threads(setup, whole, passes, executor);
  json result = {{"threads", executor.threads()},
                 {"ranks", setup.size},
                 {"schedule", distributed::schedule_name(
                                  static_cast<distributed::Schedule>(setup.options.schedule))}};
  for (std::size_t p = 0; p < passes.size(); ++p)
    result[passes[p] == PassOperation::kForward ? "forward" : "backward"] = report_of(reports[p]);
  return result;
}

}  // namespace tilewise::cli
