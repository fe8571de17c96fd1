// What the threads of a block wait at: mbarrier objects, named barriers, and the registers that
// setmaxnreg moves between warps.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace tilewise::emulation {

// Of a block. All but complete() from a fiber; addresses are those of instructions.
class Barriers {
 public:
  void begin(int threads);

  void init(std::uint32_t address, std::uint32_t arrivals);
  void fence_init();  // the copy engine may use what was initialised
  void arrive(std::uint32_t address, std::uint32_t expected_bytes);
  void wait(std::uint32_t address, std::uint32_t parity);
  // The barrier that a copy of `bytes` will tell that it has landed.
  void check_copy(std::uint32_t address);
  void complete(std::uint32_t address, std::uint32_t bytes);

  void sync_named(std::uint32_t name, std::uint32_t threads);
  void arrive_named(std::uint32_t name, std::uint32_t threads);

  void give_up_registers(int count);
  void take_registers(int count);

 private:
  struct MBarrier {
    std::uint32_t arrivals;  // of a phase
    std::uint32_t pending;   // that have not come
    std::int64_t bytes = 0;  // that have not come
    std::uint32_t parity = 0;
    bool fenced = false;
  };
  struct Named {
    std::uint32_t threads = 0;  // 0: nobody is there
    std::uint32_t arrived = 0;
    std::uint64_t completed = 0;
  };
  static constexpr int kNames = 16;

  MBarrier& at(std::uint32_t address, const char* what);
  static void end_phase(MBarrier& barrier);
  Named& come(std::uint32_t name, std::uint32_t threads);

  std::map<std::uint32_t, MBarrier> barriers_;  // by address
  Named named_[kNames];
  std::vector<int> registers_;  // of each thread
  int free_registers_ = 0;
};

}  // namespace tilewise::emulation
