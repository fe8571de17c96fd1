#include "explain_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "calibrate/calibrate.h"
#include "distributed/simulation/timeline.h"
#include "execution.h"
#include "format.h"
#include "machine.h"
#include "mask_flags.h"
#include "outputs.h"
#include "random_inputs.h"
#include "schedule_flag.h"
#include "table.h"
#include "timeline_plot.h"

namespace tilewise::cli {
namespace {

using distributed::Schedule;
using distributed::magi::Mask;
using distributed::magi::Plan;
using distributed::simulation::Machine;
using distributed::simulation::RankTimeline;
using distributed::simulation::Step;
using nlohmann::json;

constexpr const char* kRankFlags[] = {"bandwidth", "latency", "peak",
                                      "schedule",  "chunk",   "stages"};
constexpr std::int64_t kMostRanks = 65536;
constexpr std::int64_t kListedRanks = 16;

void require(problem::Status status) {
  if (status != TILEWISE_OK) throw UsageError(problem::message());
}

double positive(const Flags& flags, const char* name, double fallback) {
  const double value = flags.number(name, fallback);
  if (value > 0) return value;
  throw UsageError(fmt::format("--{}: is \"{}\", must be above 0", name, flags.text(name)));
}

// The speed of one rank: --peak, or what this machine does now.
double peak_flops(const Flags& flags, std::int32_t dtype) {
  if (flags.given("peak")) return positive(flags, "peak", 0) * 1e12;
  const Executor executor(flags);
  return calibrate::measure_flops(plan::this_host().target, dtype, executor.threads());
}

Machine machine_of(const Flags& flags, const Shape& shape, const Mask& mask, double flops) {
  const std::int32_t dtype = dtype_flag(flags, TILEWISE_BF16);
  const bool backward = flags.choice("op", {"forward", "backward"}) == 1;
  const auto d = static_cast<double>(shape.head_dim);
  const auto dv = static_cast<double>(shape.value_dim);
  // Products: QK and PV; in backward QK, dP = dO V, dV, dQ and dK.
  const double flops_per_pair = backward ? 6 * d + 4 * dv : 2 * (d + dv);
  const double row = static_cast<double>(shape.kv_heads) * (d + dv);
  if (!flags.given("bandwidth")) throw UsageError("--bandwidth: missing");
  Machine machine;
  machine.seconds_per_pair = flops_per_pair / flops * static_cast<double>(shape.heads) /
                             static_cast<double>(std::max<std::int64_t>(mask.heads, 1));
  machine.bandwidth = positive(flags, "bandwidth", 0) * 1e9;
  machine.latency = flags.number("latency", 5) * 1e-6;
  if (machine.latency < 0)
    throw UsageError(
        fmt::format("--latency: is \"{}\", must be at least 0", flags.text("latency")));
  machine.row_bytes = row * static_cast<double>(problem::dtype_size(dtype));
  if (backward) machine.gradient_bytes = row * (dtype == TILEWISE_FP64 ? 8 : 4);
  return machine;
}

// A schedule, and what is printed of it.
struct Explained {
  SimulatedSchedule simulated;
  std::optional<Plan> plan;  // present for the balanced schedule

  const distributed::simulation::Work& work() const { return simulated.work; }
  const distributed::simulation::Timeline& timeline() const { return simulated.timeline; }
  double bytes(std::int64_t rank, std::int64_t Step::*rows) const {
    return static_cast<double>(work().sum(rank, rows)) *
           (simulated.row_bytes + simulated.gradient_bytes);
  }
  double most_bytes() const {
    double most = 0;
    for (std::int64_t r = 0; r < work().ranks; ++r)
      most = std::max(most, bytes(r, &Step::received_rows));
    return most;
  }
  double mean_bytes() const {
    double total = 0;
    for (std::int64_t r = 0; r < work().ranks; ++r) total += bytes(r, &Step::received_rows);
    return total / static_cast<double>(work().ranks);
  }
  std::int64_t messages() const {
    std::int64_t most = 0;
    for (std::int64_t r = 0; r < work().ranks; ++r)
      most = std::max(most, work().sum(r, &Step::messages));
    return most;
  }
  // The largest area over the mean.
  double imbalance() const {
    std::int64_t most = 0;
    for (std::int64_t r = 0; r < work().ranks; ++r)
      most = std::max(most, work().sum(r, &Step::area));
    return work().area == 0 ? 1
                            : static_cast<double>(most) * static_cast<double>(work().ranks) /
                                  static_cast<double>(work().area);
  }
};

Explained explain_schedule(const Flags& flags, const Mask& mask, Schedule schedule,
                           const Machine& machine) {
  const std::int64_t ranks = flags.integer("ranks", 1, kMostRanks, 1);
  Explained result;
  if (schedule == Schedule::kBalanced) {
    result.plan.emplace();
    require(make_plan(mask,
                      {.ranks = ranks,
                       .chunk_rows = flags.integer("chunk", 1, INT64_MAX, 0),
                       .stages = flags.integer("stages", 1, 4096, 0)},
                      &*result.plan));
    result.simulated.work = distributed::simulation::magi_work(*result.plan);
  } else {
    require(ring_work(mask, schedule, ranks, &result.simulated.work));
  }
  result.simulated.timeline = simulate(result.simulated.work, machine);
  result.simulated.row_bytes = machine.row_bytes;
  result.simulated.gradient_bytes = machine.gradient_bytes;
  return result;
}

json rank_json(const Explained& explained, std::int64_t rank) {
  const RankTimeline& timeline = explained.timeline().ranks[static_cast<std::size_t>(rank)];
  json steps = json::array();
  for (std::int64_t s = 0; s < explained.work().steps; ++s) {
    const Step& step = explained.work().at(rank, s);
    const auto& compute = timeline.compute[static_cast<std::size_t>(s)];
    steps.push_back({{"area", step.area},
                     {"received_rows", step.received_rows},
                     {"sent_rows", step.sent_rows},
                     {"messages", step.messages},
                     {"compute_begin_seconds", compute.begin},
                     {"compute_end_seconds", compute.end}});
  }
  return {{"queries", explained.work().q_rows[static_cast<std::size_t>(rank)]},
          {"area", explained.work().sum(rank, &Step::area)},
          {"received_bytes", explained.bytes(rank, &Step::received_rows)},
          {"sent_bytes", explained.bytes(rank, &Step::sent_rows)},
          {"computing_seconds", timeline.computing()},
          {"end_seconds", timeline.end()},
          {"steps", steps}};
}

json schedule_json(const Explained& explained, bool listed) {
  json result = {{"name", distributed::schedule_name(explained.work().schedule)},
                 {"steps", explained.work().steps},
                 {"imbalance", explained.imbalance()},
                 {"mean_received_bytes", explained.mean_bytes()},
                 {"most_received_bytes", explained.most_bytes()},
                 {"messages", explained.messages()},
                 {"predicted_seconds", explained.timeline().seconds},
                 {"efficiency", explained.timeline().efficiency()}};
  if (explained.plan) {
    result["chunk_rows"] = explained.plan->chunk_rows;
    result["area_lower_bound"] = explained.plan->area_lower_bound;
  }
  if (!listed) return result;
  result["ranks"] = json::array();
  for (std::int64_t r = 0; r < explained.work().ranks; ++r)
    result["ranks"].push_back(rank_json(explained, r));
  return result;
}

void print_schedules(const std::vector<Explained>& schedules) {
  Table table({"schedule", "steps", "largest area / mean", "received: mean", "most", "messages",
               "predicted time", "efficiency"});
  for (const Explained& explained : schedules) {
    table.add({distributed::schedule_name(explained.work().schedule),
               fmt::format("{}", explained.work().steps),
               fmt::format("{:.4f}", explained.imbalance()), format_bytes(explained.mean_bytes()),
               format_bytes(explained.most_bytes()), fmt::format("{}", explained.messages()),
               format_seconds(explained.timeline().seconds),
               fmt::format("{:.1f} %", 100 * explained.timeline().efficiency())});
  }
  fmt::print("{}", table.text());
}

// Prints a row for each rank, or for some of many.
void print_ranks(const Explained& explained) {
  const std::int64_t ranks = explained.work().ranks;
  const double mean = static_cast<double>(explained.work().area) / static_cast<double>(ranks);
  Table table(
      {"rank", "queries", "area / mean", "received", "sent", "messages", "computes", "ends"});
  const std::int64_t count = std::min(ranks, kListedRanks);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t r = count == 1 ? 0 : i * (ranks - 1) / (count - 1);
    const RankTimeline& timeline = explained.timeline().ranks[static_cast<std::size_t>(r)];
    table.add({fmt::format("{}", r),
               fmt::format("{}", explained.work().q_rows[static_cast<std::size_t>(r)]),
               fmt::format(
                   "{:.4f}",
                   mean > 0 ? static_cast<double>(explained.work().sum(r, &Step::area)) / mean : 1),
               format_bytes(explained.bytes(r, &Step::received_rows)),
               format_bytes(explained.bytes(r, &Step::sent_rows)),
               fmt::format("{}", explained.work().sum(r, &Step::messages)),
               format_seconds(timeline.computing()), format_seconds(timeline.end())});
  }
  fmt::print("\n{}{}:\n\n{}", distributed::schedule_name(explained.work().schedule),
             count < ranks ? fmt::format(", {} of {} ranks", count, ranks) : "", table.text());
}

void print_json(const std::vector<Explained>& schedules, const Machine& machine, double flops) {
  const Explained& first = schedules.front();
  json result = {{"ranks", first.work().ranks},
                 {"peak_gflops", flops * 1e-9},
                 {"bandwidth_gbytes_per_second", machine.bandwidth * 1e-9},
                 {"latency_seconds", machine.latency},
                 {"area", first.work().area},
                 {"ideal_seconds", first.timeline().ideal},
                 {"schedules", json::array()}};
  for (const Explained& explained : schedules)
    result["schedules"].push_back(schedule_json(explained, schedules.size() == 1));
  fmt::print("{}\n", result.dump());
}

struct Heading {
  std::string title;
  std::string subtitle;
};

Heading heading_of(const Flags& flags, const Machine& machine, double flops, double ideal) {
  const char* const pass = machine.gradient_bytes > 0 ? "backward" : "forward";
  return {fmt::format("{} {} {} on {} ranks", flags.text("shape"),
                      dtype_text(dtype_flag(flags, TILEWISE_BF16)), pass, flags.text("ranks")),
          fmt::format("each {}, {} in each direction, {} per message; ideal {}",
                      format_flops(flops), format_rate(machine.bandwidth),
                      format_seconds(machine.latency), format_seconds(ideal))};
}

std::vector<Schedule> requested_schedules(const Flags& flags) {
  const auto chosen = static_cast<Schedule>(schedule_flag(flags, "all"));
  if (chosen != Schedule::kAutomatic) return {chosen};
  return {std::begin(distributed::simulation::kSchedules),
          std::end(distributed::simulation::kSchedules)};
}

}  // namespace

void add_simulation_flags(Flags& flags) {
  flags.begin_group("Distribution");
  flags.add_value("ranks", "N", "simulate distributed attention on N ranks");
  flags.add_value("bandwidth", "GB/S", "of a rank's link, in each direction");
  flags.add_value("latency", "US", "microseconds for each message; default 5");
  flags.add_value("peak", "TFLOP/S", "speed of a rank; default: this machine, measured now");
  flags.add_value("schedule", "all|" + std::string(kScheduleNames),
                  "default all; one: its ranks are listed");
  flags.add_value("chunk", "ROWS", "balanced: queries that are dealt together; default automatic");
  flags.add_value("stages", "N",
                  "balanced: parts in which keys arrive; default automatic, up to 8");
}

void check_simulation_flags(const Flags& flags) {
  for (const char* name : kRankFlags) {
    if (flags.given(name)) throw UsageError(fmt::format("--{}: given without --ranks", name));
  }
}

int explain_ranks(const Flags& flags) {
  if (!flags.given("shape")) throw UsageError("--shape: missing");
  const Shape shape = shape_flag(flags);
  flags.integer("ranks", 1, kMostRanks, 1);  // refuses a bad number
  const std::vector<Schedule> requested = requested_schedules(flags);
  const std::int32_t dtype = dtype_flag(flags, TILEWISE_BF16);
  const Mask mask = read_mask(flags, shape);
  machine_of(flags, shape, mask, 1);  // refuses bad flags before anything is measured
  const double flops = peak_flops(flags, dtype);
  const Machine machine = machine_of(flags, shape, mask, flops);
  std::vector<Explained> schedules;
  std::vector<SimulatedSchedule> plotted;
  for (const Schedule schedule : requested) {
    schedules.push_back(explain_schedule(flags, mask, schedule, machine));
    if (flags.given("plot")) plotted.push_back(schedules.back().simulated);
  }
  const Heading heading = heading_of(flags, machine, flops, schedules.front().timeline().ideal);
  if (flags.given("plot"))
    write_text(flags.text("plot"), timeline_svg(heading.title, heading.subtitle, plotted));
  if (flags.given("json")) {
    print_json(schedules, machine, flops);
    return 0;
  }
  fmt::print("{}: {}\n\n", heading.title, heading.subtitle);
  print_schedules(schedules);
  if (schedules.size() == 1) print_ranks(schedules.front());
  if (flags.given("plot")) fmt::print("\nplot: {}\n", flags.text("plot"));
  return 0;
}

}  // namespace tilewise::cli
