// The command line program `tilewise-mpi`, which mpirun starts once for each rank.
#include <tilewise/tilewise_mpi.h>

#include <cstdio>

#include "program.h"

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  tilewise_communicator communicator;
  if (tilewise_mpi_communicator_create(MPI_COMM_WORLD, &communicator) != TILEWISE_OK) {
    std::fprintf(stderr, "tilewise-mpi: %s\n", tilewise_last_error());
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  tilewise::cli::process_ranks = &communicator;
  const int code = tilewise::cli::run_program(argc, argv);
  if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);  // the other ranks may wait for this one
  tilewise_mpi_communicator_destroy(&communicator);
  MPI_Finalize();
  return 0;
}
