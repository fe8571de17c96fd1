/* Attention over 2 ranks of MPI: every value is 1, and so is every output. */
#include <stdio.h>
#include <tilewise/tilewise_mpi.h>

enum { kRows = 3, kHeads = 2, kDim = 4 };

int main(int count, char** arguments) {
  const int64_t shape[] = {1, kRows, kHeads, kDim};
  float ones[kRows * kHeads * kDim], out[kRows * kHeads * kDim];
  tilewise_communicator communicator;
  tilewise_problem problem;
  tilewise_distributed_options options;
  int provided = 0;
  tilewise_status status;
  for (int i = 0; i < kRows * kHeads * kDim; ++i) ones[i] = 1;
  MPI_Init_thread(&count, &arguments, MPI_THREAD_SERIALIZED, &provided);
  status = tilewise_mpi_communicator_create(MPI_COMM_WORLD, &communicator);
  tilewise_problem_init(&problem);
  problem.q = problem.k = problem.v = tilewise_contiguous(ones, TILEWISE_FP32, 4, shape);
  problem.out = tilewise_contiguous(out, TILEWISE_FP32, 4, shape);
  problem.causal = 1;
  tilewise_distributed_options_init(&options);
  options.q_len = options.k_len = (int64_t)kRows * communicator.size;
  options.schedule = TILEWISE_SCHEDULE_CONTIGUOUS;
  if (status == TILEWISE_OK)
    status = tilewise_distributed_forward(&problem, &options, &communicator, NULL);
  if (status != TILEWISE_OK) printf("%s\n", tilewise_last_error());
  for (int i = 0; status == TILEWISE_OK && i < kRows * kHeads * kDim; ++i)
    status = out[i] > 0.999F && out[i] < 1.001F ? TILEWISE_OK : TILEWISE_INTERNAL_ERROR;
  tilewise_mpi_communicator_destroy(&communicator);
  MPI_Finalize();
  return status;
}
