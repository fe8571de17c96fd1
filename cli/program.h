// The program: what `tilewise` and `tilewise-mpi` share.
#pragma once

#include <tilewise/tilewise_distributed.h>

namespace tilewise::cli {

// Runs the command line and returns the exit code.
int run_program(int argc, char** argv);

// The ranks that the process is one of; nullptr if it is alone. tilewise-mpi sets it.
extern const tilewise_communicator* process_ranks;

}  // namespace tilewise::cli
