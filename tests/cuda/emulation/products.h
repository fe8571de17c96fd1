// wgmma: products of a warpgroup, whose results come as late as they can. Between a product and the
// wait for it, its sums are poison in the registers, and what it reads may not change.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "cuda/emulation/block.h"
#include "cuda/emulation/operands.h"

namespace tilewise::emulation {

// A thread's part of wgmma.mma_async.m64nNk16: its registers of the sums (64, width), and the
// operands (64, 16), in registers (4) or by a descriptor, and (16, width), by a descriptor.
struct Product {
  int width;
  bool fp16;  // else bf16
  bool add;   // else the sums begin here
  float* sums;
  const std::uint32_t* left;  // nullptr: left_descriptor
  std::uint64_t left_descriptor;
  std::uint64_t right_descriptor;
};

// Of a block. From a fiber, but for finish().
class Products {
 public:
  void begin() { warpgroups_.clear(); }

  void fence();
  void add(const Product& product);
  void commit();
  void wait(int groups);
  // Registers are read: no product may be under way to them.
  void check_settled(const float* registers);

  // Brings a warp that waits, the first or any, the results of its next group; false: none waits.
  bool finish();
  bool idle() const;

 private:
  static constexpr std::size_t kGroupWarps = kGroupThreads / kWarpThreads;

  struct Pending {
    Product product;
    std::array<std::uint32_t, 4> left;  // the registers' numbers at that time
  };
  // What a thread has asked for since its last commit.
  struct Lane {
    std::vector<Pending> pending;
    bool fenced = false;
  };
  // Of products that are under way and add to the same registers.
  struct Sums {
    int width;
    int group;                                    // the last of them
    std::array<float*, kGroupThreads> registers;  // nullptr: they have their results
    std::vector<float> values;                    // (64, width)
  };
  // What was committed together.
  struct Group {
    int number;
    std::array<std::vector<Pending>, kGroupThreads> pending;
    std::vector<ReadPart> read;
  };
  struct Warpgroup {
    std::array<Lane, kGroupThreads> lanes;
    int committed = 0;
    std::array<int, kGroupWarps> finished = {};  // groups
    std::array<int, kGroupWarps> waiting = {};   // lanes
    std::deque<Group> groups;
    std::deque<Sums> sums;
  };

  Warpgroup& own();
  static void perform_commit(const GroupRequests& requests);
  static void start(Warpgroup& warpgroup, Group& group, std::size_t which);
  static Sums& sums_of(Warpgroup& warpgroup, const Group& group, std::size_t which);
  static void finish_group(Warpgroup& warpgroup, std::size_t warp);

  std::vector<Warpgroup> warpgroups_;  // of the block; none before the first asks for something
};

}  // namespace tilewise::emulation
