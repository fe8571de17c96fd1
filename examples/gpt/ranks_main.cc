// gpt_ranks trains the GPT in one process and on ranks that are threads, and compares.
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "ranks_demo.h"

namespace {

constexpr std::int64_t kMostRanks = 64;

std::string help() {
  return std::string(
             "Usage: gpt_ranks --source DIR [options]\n"
             "Trains a byte-level GPT in one process, and on ranks that each hold a part of the\n"
             "sequence. Prints both losses. Fails if they differ by more than 1e-6.\n\n"
             "  --ranks N      threads that divide the sequence (default 2, 1 to 64)\n") +
         gpt::kRanksDemoOptions +
         "  --help\n\nExample: gpt_ranks --source . --ranks 4 --steps 10\n";
}

// Trains on every rank. Returns the losses, which are the same on all of them.
std::vector<double> train_on_threads(const gpt::RanksDemo& demo, std::int32_t size) {
  const tilewise::LocalGroup group(size);
  std::vector<std::vector<double>> losses(static_cast<std::size_t>(size));
  std::mutex mutex;
  std::exception_ptr failure;  // of the rank that failed first
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const tilewise_communicator communicator = group.communicator(rank);
      const gpt::Ranks ranks(communicator);
      try {
        losses[static_cast<std::size_t>(rank)] = gpt::train_demo(demo, &ranks);
      } catch (...) {
        communicator.abort(communicator.self);
        const std::lock_guard<std::mutex> lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  return losses[0];
}

int run(int argc, char** argv) {
  const gpt::Arguments arguments(argc, argv, gpt::ranks_demo_arguments({"--ranks"}));
  const auto size = static_cast<std::int32_t>(arguments.integer("--ranks", 1, kMostRanks, 2));
  const gpt::RanksDemo demo = gpt::read_ranks_demo(arguments);
  const std::vector<double> several = train_on_threads(demo, size);
  return gpt::report_ranks(demo, size, "threads", gpt::train_demo(demo, nullptr), several);
}

}  // namespace

int main(int argc, char** argv) { return gpt::run_program(argc, argv, help().c_str(), run); }
