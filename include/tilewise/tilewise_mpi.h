/* Communicators of tilewise_distributed.h over MPI. The C interface (C99), of the library
 * tilewise_mpi (CMake: find_package(Tilewise COMPONENTS MPI), target Tilewise::tilewise_mpi).
 *
 *   MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
 *   tilewise_communicator communicator;
 *   tilewise_mpi_communicator_create(MPI_COMM_WORLD, &communicator);
 */
#ifndef TILEWISE_TILEWISE_MPI_H_
#define TILEWISE_TILEWISE_MPI_H_

#include <mpi.h>
#include <tilewise/tilewise_distributed.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a communicator of the ranks of `comm`, on a duplicate of it. Collective. MPI must be
 * initialised. Communication overlaps with computation if MPI provides MPI_THREAD_SERIALIZED or
 * more: exchange() is then called on a thread of its own, while the caller's thread makes no MPI
 * calls.
 *
 * A rank that waits in exchange() answers the questions of others, so that the rank that does not
 * answer is found when a time limit passes. After a failure MPI may still read a message that it
 * could not cancel (reads_after_failure is 1): keep tensors and workspaces until MPI_Finalize() or
 * the end of the process. */
TILEWISE_API tilewise_status tilewise_mpi_communicator_create(MPI_Comm comm,
                                                              tilewise_communicator* communicator);

/* Frees a communicator. Collective, unless an exchange has failed: the duplicate of `comm` then
 * remains until MPI_Finalize(). */
TILEWISE_API tilewise_status tilewise_mpi_communicator_destroy(tilewise_communicator* communicator);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TILEWISE_TILEWISE_MPI_H_ */
