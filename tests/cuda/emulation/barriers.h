// What the threads of a block wait at: mbarrier objects, named barriers, and the registers that
// setmaxnreg moves between warps.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "cuda/emulation/block.h"

namespace tilewise::emulation {

// Of a block. All but complete() from a fiber; addresses are those of instructions.
class Barriers {
 public:
  void begin(int threads);

  void init(std::uint32_t address, std::uint32_t arrivals);
  void fence_init();  // the copy engine may use what was initialised
  void arrive(std::uint32_t address, std::uint32_t expected_bytes);
  void wait(std::uint32_t address, std::uint32_t parity);
  bool test(std::uint32_t address, std::uint32_t parity);
  // The barrier that a copy of `bytes` will tell that it has landed.
  void check_copy(std::uint32_t address);
  void complete(std::uint32_t address, std::uint32_t bytes);

  void named_barrier_sync(std::uint32_t name, std::uint32_t threads);
  void named_barrier_arrive(std::uint32_t name, std::uint32_t threads);
  // All threads of the block have met.
  void meet();

  void setmaxnreg_dec(int count);
  void setmaxnreg_inc(int count);

 private:
  static constexpr int kNames = 16;
  // How many phases of each named barrier are known to be over. A warp that comes without knowing
  // it comes before the end of the phase in some other order of the warps, and counts there.
  using Known = std::array<std::uint64_t, kNames>;
  // What is known at a barrier: to those who come in a phase, and to those who waited for its end.
  struct Handover {
    Known coming = {};
    Known passed = {};
  };
  struct MBarrier {
    std::uint32_t arrivals;  // of a phase
    std::uint32_t pending;   // that have not come
    std::int64_t bytes = 0;  // that have not come
    std::uint32_t parity = 0;
    bool fenced = false;
    Handover handover = {};
  };
  struct Named {
    std::uint32_t threads = 0;  // 0: nobody is there
    std::uint32_t arrived = 0;
    std::uint64_t completed = 0;
    Handover handover = {};
  };

  MBarrier& at(std::uint32_t address, const char* what);
  static void end_phase(MBarrier& barrier);
  Known& known();  // to the warp of the thread that runs
  static void learn(Known& known, const Known& more);
  Named& come(std::uint32_t name, std::uint32_t threads);

  std::map<std::uint32_t, MBarrier> barriers_;  // by address
  Named named_[kNames];
  std::array<Known, kMostThreads / kWarpThreads> known_;  // by warps
  std::vector<int> registers_;                            // of each thread
  int free_registers_ = 0;
};

}  // namespace tilewise::emulation
