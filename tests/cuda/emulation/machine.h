// What a launch is made of, for the files of the emulation; device code knows block.h.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/emulation/barriers.h"
#include "cuda/emulation/block.h"
#include "cuda/emulation/copies.h"
#include "cuda/emulation/copy_engine.h"
#include "cuda/emulation/fiber.h"
#include "cuda/emulation/products.h"
#include "cuda/emulation/shared.h"
#include "cuda_runtime.h"

namespace tilewise::emulation {

// kWaits: until somebody wakes it; kYields: until other blocks have had their turn.
enum class State { kReady, kAtWarp, kAtWarpgroup, kAtBlock, kWaits, kYields, kReturned };

struct Thread {
  std::unique_ptr<Fiber> fiber;
  State state = State::kReady;
  std::uint32_t mask = 0;  // of the collective of a warp that it waits in
  Perform perform = nullptr;
  PerformGroup perform_group = nullptr;
  void* request = nullptr;
  const void* object = nullptr;  // that it waits for, as it is to be reported
  const char* waits = nullptr;
  std::uint32_t number = 0;
  bool follows = true;  // the kernel before has ended
};

// By lanes.
struct Warp {
  std::uint32_t alive = 0;    // that have not returned
  std::uint32_t waiting = 0;  // in a collective
};

struct Block {
  std::int64_t number = 0;
  std::vector<Thread> threads = std::vector<Thread>(kMostThreads);
  std::vector<Warp> warps = std::vector<Warp>(kMostThreads / kWarpThreads);
  int at_warpgroup[kMostThreads / kGroupThreads] = {};
  int at_block = 0;
  bool any = false;
  bool result = false;  // of the last barrier
  SharedMemory shared;
  Barriers barriers;
  CopyQueues copies;  // cp.async
  CopyEngine engine;
  Products products;
};

struct Machine {
  Launch launch = {};
  Block* block = nullptr;  // that runs
  int running = 0;         // thread
  std::string failure;
  std::mt19937_64 random;
  bool shuffles = false;
  int poison = 0;
};

inline Machine only_machine;

inline Machine& machine() { return only_machine; }
inline Block& block() { return *only_machine.block; }
inline Thread& thread() { return block().threads[static_cast<std::size_t>(only_machine.running)]; }

// The launch fails. Not only from a fiber.
void record(const std::string& what);

// The thread that runs waits until somebody wakes those that wait for the object; the report of a
// block that cannot go on says "`waits` `number`".
void wait_for(const void* object, const char* waits, std::uint32_t number);
void wake(const void* object);

// ---- for launches ----

enum class Progress { kDone, kYields };

// Puts a block at its beginning; runs one until it is done, or waits for others. What is wrong is
// recorded.
void begin_block(Block& block, std::int64_t number);
Progress run_block(Block& block);

}  // namespace tilewise::emulation
