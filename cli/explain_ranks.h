// tilewise explain --ranks: what distributed schedules compute and send, and how long they take.
#pragma once

#include "flags.h"

namespace tilewise::cli {

void add_simulation_flags(Flags& flags);

// Throws UsageError if a flag of this header is given without --ranks.
void check_simulation_flags(const Flags& flags);

// Runs explain with --ranks. Returns the exit code.
int explain_ranks(const Flags& flags);

}  // namespace tilewise::cli
