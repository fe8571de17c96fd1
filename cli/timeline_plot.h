// Timelines of distributed schedules as SVG: what ranks compute and send, when.
#pragma once

#include <string>
#include <vector>

#include "distributed/simulation/timeline.h"

namespace tilewise::cli {

struct SimulatedSchedule {
  distributed::simulation::Work work;
  distributed::simulation::Timeline timeline;
  double row_bytes = 0;  // as in distributed::simulation::Machine
  double gradient_bytes = 0;
};

// Returns an SVG with a panel for each schedule, all on one axis of time. A panel has two lanes for
// each of up to 16 ranks: computing above, receiving and sending below.
std::string timeline_svg(const std::string& title, const std::string& subtitle,
                         const std::vector<SimulatedSchedule>& schedules);

}  // namespace tilewise::cli
