// gpt_mpi trains the GPT on the processes that mpirun starts, each on a part of the sequence; the
// first one then trains alone, and compares.
#include <tilewise/tilewise_mpi.h>

#include <string>

#include "ranks_demo.h"

namespace {

std::string help() {
  return std::string(
             "Usage: mpirun -np N gpt_mpi --source DIR [options]\n"
             "Trains a byte-level GPT on N processes that each hold a part of the sequence, and "
             "in\n"
             "one. Prints both losses. Fails if they differ by more than 1e-6.\n\n") +
         gpt::kRanksDemoOptions +
         "  --help\n\nExample: mpirun -np 4 gpt_mpi --source . --steps 10\n";
}

// A communicator over all processes.
class World {
 public:
  World() { tilewise::check(tilewise_mpi_communicator_create(MPI_COMM_WORLD, &communicator_)); }
  ~World() { tilewise_mpi_communicator_destroy(&communicator_); }
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  const tilewise_communicator& get() const { return communicator_; }

 private:
  tilewise_communicator communicator_;
};

int run(int argc, char** argv) {
  const gpt::Arguments arguments(argc, argv, gpt::ranks_demo_arguments({}));
  const gpt::RanksDemo demo = gpt::read_ranks_demo(arguments);
  const World world;
  const gpt::Ranks ranks(world.get());
  const std::vector<double> several = gpt::train_demo(demo, &ranks);
  if (ranks.rank() != 0) return 0;
  return gpt::report_ranks(demo, ranks.size(), "processes", gpt::train_demo(demo, nullptr),
                           several);
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  const int code = gpt::run_program(argc, argv, help().c_str(), run);
  if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);  // the other ranks may wait for this one
  MPI_Finalize();
  return 0;
}
