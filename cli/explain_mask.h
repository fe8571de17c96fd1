// tilewise explain --slices, --tile or --plot: what of a mask is visible, and what tiles visit.
#pragma once

#include "flags.h"

namespace tilewise::cli {

void add_tile_flags(Flags& flags);

// Throws UsageError if one of them is given; `explain --ranks` has no tiles.
void check_tile_flags(const Flags& flags);

// Whether the flags ask for the mask, not for the traffic of the algorithms.
bool is_about_the_mask(const Flags& flags);

// Returns the exit code.
int explain_mask(const Flags& flags);

}  // namespace tilewise::cli
