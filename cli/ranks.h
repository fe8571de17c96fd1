// Runs a problem on several ranks: threads of this process (--ranks), or the processes of mpirun.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "execution.h"
#include "flags.h"

namespace tilewise::cli {

void add_rank_flags(Flags& flags);

// True if the flags, or the program, ask for ranks.
bool runs_on_ranks(const Flags& flags);

// True if this process writes the results: the first rank, or the only process.
bool writes_results();

// Runs the passes one after the other, and writes the outputs to the tensors of `whole` (if this
// process writes results). Returns the report. Throws UsageError with the library's message.
nlohmann::json run_on_ranks(const Flags& flags, const tilewise_problem& whole,
                            const std::vector<problem::Operation>& passes,
                            const Executor& executor);

}  // namespace tilewise::cli
