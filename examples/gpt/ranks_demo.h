// Trains the GPT on long sequences that several ranks divide, and compares the losses with those of
// one process. gpt_ranks runs the ranks as threads, gpt_mpi is one process of each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "arguments.h"
#include "data.h"
#include "ranks.h"
#include "train.h"

namespace gpt {

inline constexpr const char* kRanksDemoOptions =
    R"(  --source DIR   a checkout of Tilewise: README.md, docs/, include/, src/
  --steps N      training steps (default 20, 1 to 100000)
  --length N     bytes of the one sequence of a step (default 1024, 1 to 65536)
  --seed N       of weights and batches (default 1)
)";

struct RanksDemo {
  TrainOptions options;
  Corpus corpus;
};

// Reads the options above. `names` are further arguments that the program takes.
RanksDemo read_ranks_demo(const Arguments& arguments);
std::vector<std::string> ranks_demo_arguments(std::vector<std::string> names);

// Trains in fp64 with one thread; with ranks, as one of them. Returns the losses.
std::vector<double> train_demo(const RanksDemo& demo, const Ranks* ranks);

// Prints both curves, and what `size` ranks are. Returns 0 if no step differs by more than 1e-6.
int report_ranks(const RanksDemo& demo, std::int32_t size, const char* ranks,
                 const std::vector<double>& one, const std::vector<double>& several);

}  // namespace gpt
