// A launch runs its blocks one after the other, or alternately where they wait for each other.
#include "cuda/emulation/machine.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <numeric>

namespace tilewise::emulation {
namespace {

// The byte of poison. kGarbage is a wrong number: 12 in fp32 and bf16, 2.6 in fp16. kNan is NaN in
// every format, but kernels may take it for a non-finite input and recompute the row.
constexpr int kGarbage = 0x41;
constexpr int kNan = 0xFF;

// After so many runs of blocks of which none ended, the blocks wait for each other for ever. No
// launch here has so many tiles.
constexpr int kMaxIdleRuns = 100000;

// $TILEWISE_EMULATION_SEED. 0: threads and blocks run in their order; else the seed shuffles them.
// Odd: memory that was not written holds NaN.
std::uint64_t order_seed() {
  const char* const given = std::getenv("TILEWISE_EMULATION_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 0;
}

// The blocks of a launch that have begun, and memory for more.
class Blocks {
 public:
  std::size_t running() const { return running_.size(); }

  // Begins the blocks of a cluster.
  void begin(std::int64_t cluster) {
    const int blocks = machine().launch.cluster;
    for (int rank = 0; rank < blocks; ++rank) {
      if (free_.empty()) free_.push_back(std::make_unique<Block>());
      running_.push_back(std::move(free_.back()));
      free_.pop_back();
      begin_block(*running_.back(), cluster * blocks + rank);
      running_.back()->peer = nullptr;
    }
    if (blocks == 1) return;
    Block* const pair[] = {running_.back().get(), running_[running_.size() - 2].get()};
    pair[0]->peer = pair[1];
    pair[1]->peer = pair[0];
  }

  // Runs the next block, or a random one.
  Progress run_one() {
    Machine& m = machine();
    if (m.shuffles) std::swap(running_.front(), running_[m.random() % running_.size()]);
    std::unique_ptr<Block> own = std::move(running_.front());
    running_.pop_front();
    const Progress progress = run_block(*own);
    if (progress == Progress::kDone && own->peer != nullptr) own->peer->peer = nullptr;
    (progress == Progress::kYields ? running_ : free_).push_back(std::move(own));
    return progress;
  }

  void drop() {
    while (!running_.empty()) {
      free_.push_back(std::move(running_.back()));
      running_.pop_back();
    }
  }

 private:
  std::deque<std::unique_ptr<Block>> running_;
  std::deque<std::unique_ptr<Block>> free_;
};

void run_all(const std::vector<std::int64_t>& order) {
  static Blocks blocks;
  Machine& m = machine();
  int idle_runs = 0;
  for (std::size_t next = 0; m.failure.empty() && (next < order.size() || blocks.running() > 0);) {
    const bool may_wait = m.shuffles && blocks.running() > 0 && m.random() % 2 == 0;
    const bool has_room =
        blocks.running() + static_cast<std::size_t>(m.launch.cluster) <= kMultiprocessors;
    const bool begins = next < order.size() && has_room && !may_wait;
    if (begins) blocks.begin(order[next++]);
    idle_runs = blocks.run_one() == Progress::kDone ? 0 : idle_runs + 1;
    if (idle_runs > kMaxIdleRuns) record("the blocks wait for each other");
  }
  blocks.drop();
}

}  // namespace

std::string run(const Launch& launch) {
  static std::mutex one_launch;  // launches of several host threads wait for each other
  const std::lock_guard<std::mutex> alone(one_launch);
  Machine& m = machine();
  m.launch = launch;
  ++m.launches;
  m.failure.clear();
  const std::uint64_t seed = order_seed();
  m.shuffles = seed != 0;
  m.random.seed(seed);
  m.poison = seed % 2 == 0 ? kGarbage : kNan;
  blockDim = {static_cast<unsigned>(launch.threads), 1, 1};
  gridDim = {static_cast<unsigned>(launch.blocks), 1, 1};
  std::vector<std::int64_t> clusters(static_cast<std::size_t>(launch.blocks / launch.cluster));
  std::iota(clusters.begin(), clusters.end(), 0);
  if (m.shuffles) std::shuffle(clusters.begin(), clusters.end(), m.random);
  run_all(clusters);
  return m.failure;
}

}  // namespace tilewise::emulation
