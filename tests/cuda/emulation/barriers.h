// What the threads of a block wait for: mbarrier objects, named barriers, and the registers that
// setmaxnreg moves between warps.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "cuda/emulation/block.h"

namespace tilewise::emulation {

// The barriers of a block. All functions but complete() are called from a fiber. Addresses are
// those that instructions use.
class Barriers {
 public:
  void begin(int threads);

  void init(std::uint32_t address, std::uint32_t arrivals);
  void invalidate(std::uint32_t address);
  void fence_init();  // TMA may use the mbarriers initialised so far
  void arrive(std::uint32_t address, std::uint32_t expected_bytes);
  // By a thread of any block of the cluster. This block is the current one.
  void arrive_from_cluster(std::uint32_t address);
  void wait(std::uint32_t address, std::uint32_t parity);
  // Checks the mbarrier that a TMA load will complete.
  void check_copy(std::uint32_t address);
  void complete(std::uint32_t address, std::uint32_t bytes);

  void named_barrier_sync(std::uint32_t name, std::uint32_t threads);
  void named_barrier_arrive(std::uint32_t name, std::uint32_t threads);
  // All threads of the block have synchronised.
  void meet();

  void setmaxnreg_dec(int count);
  void setmaxnreg_inc(int count);

 private:
  static constexpr int kNames = 16;
  // The number of completed phases of each named barrier that a warp knows of. A warp that arrives
  // without knowing that the phase before is over could, in another order of the warps, arrive
  // before its end and be counted there.
  using Known = std::array<std::uint64_t, kNames>;
  // The knowledge that a barrier passes on: that of the warps that arrive in a phase, and that of
  // the warps that waited for its end.
  struct Knowledge {
    Known arriving = {};
    Known passed = {};
  };
  struct MBarrier {
    std::uint32_t arrivals;  // of a phase
    std::uint32_t pending;   // arrivals
    std::int64_t bytes = 0;  // that have not landed
    std::uint32_t parity = 0;
    bool fenced = false;
    Knowledge knowledge = {};
  };
  struct Named {
    std::uint32_t threads = 0;  // 0: no thread has arrived
    std::uint32_t arrived = 0;
    std::uint64_t completed = 0;
    Knowledge knowledge = {};
  };

  MBarrier& at(std::uint32_t address, const char* what);
  static void end_phase(MBarrier& barrier);
  Known& known();  // of the running thread's warp
  static void learn(Known& known, const Known& more);
  Named& arrive_at(std::uint32_t name, std::uint32_t threads);

  std::map<std::uint32_t, MBarrier> barriers_;  // by address
  Named named_[kNames];
  std::array<Known, kMaxThreads / kWarpThreads> known_;  // by warps
  std::vector<int> registers_;                           // of each thread
  int free_registers_ = 0;
};

}  // namespace tilewise::emulation
