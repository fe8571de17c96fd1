// A simulation of the overlap of computing and sending on the ranks of a schedule.
#pragma once

#include "distributed/simulation/work.h"

namespace tilewise::distributed::simulation {

// A rank computes and sends at the same time, and sends and receives at the same time.
struct Machine {
  double seconds_per_pair =
      0;                      // of a pair (query, key) of the mask's area, all heads that it counts
  double bandwidth = 0;       // bytes per second in each direction; infinity: communication is free
  double latency = 0;         // seconds per message
  double row_bytes = 0;       // of a row of keys and one of values
  double gradient_bytes = 0;  // of a row of dK and one of dV in the backward pass; 0: forward
};

struct Span {
  double begin = 0;
  double end = 0;
};

struct RankTimeline {
  std::vector<Span> compute;  // (steps)
  std::vector<Span> cast;     // (steps): keys and values of the step arrive, others leave
  std::vector<Span> reduce;   // (steps), backward: dK and dV of the step leave, others arrive
  double end() const;
  double computing() const;  // the sum of the compute spans
};

struct Timeline {
  std::vector<RankTimeline> ranks;
  double seconds = 0;  // until the last rank has finished
  double ideal = 0;    // equal areas and free communication
  double efficiency() const { return seconds > 0 ? ideal / seconds : 1; }
};

// The rules. A step's computation begins when its keys are there and the step before is over. The
// exchange of step s begins when the one before is over and the buffer of step s - 2 is not in use
// any more (two buffers take turns); in the backward pass the gradients of step s - 1 leave after
// the keys of step s + 1 have arrived, and after step s - 1 is over. An exchange begins on both
// sides: a ring waits for its neighbour, the stage of a plan for all ranks. It takes latency *
// messages + max(sent, received) bytes / bandwidth.
Timeline simulate(const Work& work, const Machine& machine);

}  // namespace tilewise::distributed::simulation
