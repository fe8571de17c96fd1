// The state of a launch, for the files of the emulation. Device code uses block.h.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/emulation/barriers.h"
#include "cuda/emulation/block.h"
#include "cuda/emulation/cp_async.h"
#include "cuda/emulation/fiber.h"
#include "cuda/emulation/races.h"
#include "cuda/emulation/shared_memory.h"
#include "cuda/emulation/tma.h"
#include "cuda/emulation/wgmma.h"
#include "cuda_runtime.h"

namespace tilewise::emulation {

// kWaits: until it is woken. kYields: until other blocks have run.
enum class State { kReady, kAtWarp, kAtWarpgroup, kAtBlock, kWaits, kYields, kReturned };

struct Thread {
  std::unique_ptr<Fiber> fiber;
  State state = State::kReady;
  std::uint32_t mask = 0;  // of the warp's collective in which it waits
  Perform perform = nullptr;
  PerformGroup perform_group = nullptr;
  void* request = nullptr;
  const void* object = nullptr;  // that it waits for; waits and number are for the report
  const char* waits = nullptr;
  std::uint32_t number = 0;
  bool dependency_done = true;  // griddepcontrol.wait was called, or is not needed
};

// Bits of lanes.
struct Warp {
  std::uint32_t alive = 0;    // lanes that have not returned
  std::uint32_t waiting = 0;  // lanes in a collective
};

struct Block {
  std::int64_t number = 0;
  Block* peer = nullptr;  // the other block of its cluster, until that one has ended
  std::vector<Thread> threads = std::vector<Thread>(kMaxThreads);
  std::vector<Warp> warps = std::vector<Warp>(kMaxThreads / kWarpThreads);
  int at_warpgroup[kMaxThreads / kGroupThreads] = {};
  int at_block = 0;
  int at_cluster = 0;       // threads
  bool knows_peer = false;  // has met the other block, which has begun therefore
  bool any = false;
  bool result = false;  // of the last barrier
  SharedMemory shared;
  Barriers barriers;
  CpAsyncQueues cp_async;  // cp.async
  Races races;
  Tma tma;
  WgmmaQueue wgmma;
};

struct Machine {
  Launch launch = {};
  Block* block = nullptr;          // that instructions work on
  Block* running_block = nullptr;  // the same, but within an InBlockOf (cluster.h)
  int running = 0;                 // number of the running thread
  bool inside = false;             // it runs, not the code that resumes it
  std::int64_t launches = 0;       // so far
  std::string failure;
  std::mt19937_64 random;
  bool shuffles = false;
  int poison = 0;
};

inline Machine only_machine;

inline Machine& machine() { return only_machine; }
inline Block& block() { return *only_machine.block; }
inline Thread& thread() {
  return only_machine.running_block->threads[static_cast<std::size_t>(only_machine.running)];
}

// Fails the launch. May also be called outside of a fiber.
void record(const std::string& what);

// The running thread waits for wake(object). If the block cannot go on, the report says "`waits`
// `number`".
void wait_for(const void* object, const char* waits, std::uint32_t number);
void wake(const void* object);

// ---- for launches ----

enum class Progress { kDone, kYields };

// begin_block() resets a block. run_block() runs it until it is done or waits for others. What is
// wrong is recorded.
void begin_block(Block& block, std::int64_t number);
Progress run_block(Block& block);

}  // namespace tilewise::emulation
