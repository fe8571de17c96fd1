#include "distributed/simulation/timeline.h"

#include <algorithm>

namespace tilewise::distributed::simulation {
namespace {

std::size_t index(std::int64_t number) { return static_cast<std::size_t>(number); }

class Simulation {
 public:
  Simulation(const Work& work, const Machine& machine, Timeline& timeline)
      : work_(work),
        machine_(machine),
        ranks_(timeline.ranks),
        link_free_(index(work.ranks)),
        starts_(index(work.ranks)) {
    for (RankTimeline& rank : ranks_) {
      rank.compute.resize(index(work.steps));
      rank.cast.resize(index(work.steps));
      if (machine.gradient_bytes > 0) rank.reduce.resize(index(work.steps));
    }
  }

  void run() {
    compute(0);
    const bool backward = machine_.gradient_bytes > 0;
    for (std::int64_t step = 1; step < work_.steps; ++step) {
      cast(step);
      // The gradients of the step before, once the keys of this one are on their way.
      if (backward && step >= 2) reduce(step - 1);
      compute(step);
    }
    if (backward && work_.steps > 1) reduce(work_.steps - 1);
  }

 private:
  void compute(std::int64_t step) {
    for (std::int64_t r = 0; r < work_.ranks; ++r) {
      RankTimeline& rank = ranks_[index(r)];
      Span& span = rank.compute[index(step)];
      span.begin = rank.cast[index(step)].end;
      if (step > 0) span.begin = std::max(span.begin, rank.compute[index(step - 1)].end);
      span.end =
          span.begin + machine_.seconds_per_pair * static_cast<double>(work_.at(r, step).area);
    }
  }

  void cast(std::int64_t step) {
    for (std::int64_t r = 0; r < work_.ranks; ++r) {
      const double buffer_free = step >= 2 ? ranks_[index(r)].compute[index(step - 2)].end : 0;
      starts_[index(r)] = std::max(link_free_[index(r)], buffer_free);
    }
    exchange(step, machine_.row_bytes, &RankTimeline::cast);
  }

  void reduce(std::int64_t step) {
    for (std::int64_t r = 0; r < work_.ranks; ++r) {
      starts_[index(r)] = std::max(link_free_[index(r)], ranks_[index(r)].compute[index(step)].end);
    }
    exchange(step, machine_.gradient_bytes, &RankTimeline::reduce);
  }

  void exchange(std::int64_t step, double row_bytes, std::vector<Span> RankTimeline::*spans) {
    double latest = 0;  // of the ranks that take part
    for (std::int64_t r = 0; r < work_.ranks; ++r) {
      if (work_.at(r, step).messages > 0) latest = std::max(latest, starts_[index(r)]);
    }
    for (std::int64_t r = 0; r < work_.ranks; ++r) {
      const Step& own = work_.at(r, step);
      Span& span = (ranks_[index(r)].*spans)[index(step)];
      span.begin = span.end = starts_[index(r)];
      if (own.messages == 0) continue;
      if (work_.schedule == Schedule::kBalanced) {
        span.begin = latest;
      } else if (own.received_rows > 0) {
        span.begin = std::max(span.begin, starts_[index((r + work_.ranks - 1) % work_.ranks)]);
      }
      const double rows = static_cast<double>(std::max(own.received_rows, own.sent_rows));
      span.end = span.begin + machine_.latency * static_cast<double>(own.messages) +
                 rows * row_bytes / machine_.bandwidth;
      link_free_[index(r)] = span.end;
    }
  }

  const Work& work_;
  const Machine& machine_;
  std::vector<RankTimeline>& ranks_;
  std::vector<double> link_free_;  // when the last exchange of each rank is over
  std::vector<double> starts_;     // of the current exchange, without waiting for others
};

}  // namespace

double RankTimeline::end() const {
  double last = compute.back().end;
  for (const Span& span : reduce) last = std::max(last, span.end);
  return last;
}

double RankTimeline::computing() const {
  double seconds = 0;
  for (const Span& span : compute) seconds += span.end - span.begin;
  return seconds;
}

Timeline simulate(const Work& work, const Machine& machine) {
  Timeline timeline;
  timeline.ranks.resize(index(work.ranks));
  Simulation(work, machine, timeline).run();
  for (const RankTimeline& rank : timeline.ranks) {
    timeline.seconds = std::max(timeline.seconds, rank.end());
  }
  timeline.ideal =
      machine.seconds_per_pair * static_cast<double>(work.area) / static_cast<double>(work.ranks);
  return timeline;
}

}  // namespace tilewise::distributed::simulation
