// wgmma: asynchronous products of a warpgroup. Their results come as late as possible. Between a
// product and the wait for it, the registers of its sums hold poison, and its operands may not
// change.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "cuda/emulation/block.h"
#include "cuda/emulation/wgmma_operands.h"

namespace tilewise::emulation {

// The arguments of a thread to wgmma.mma_async: its registers of the sums (64, width), the left
// operand (64, depth) in registers (4) or by a descriptor, and the right one (depth, width) by a
// descriptor. The depth is 32 bytes. transposed: operands in shared memory are contiguous across
// the summed dimension, which those of fp8 may not be.
struct WgmmaOp {
  int width;
  WgmmaType left_type;
  WgmmaType right_type;
  bool add;  // else the sums begin here
  bool transposed;
  float* sums;
  const std::uint32_t* left;  // nullptr: left_descriptor
  std::uint64_t left_descriptor;
  std::uint64_t right_descriptor;
};

// The products of a block. All functions but complete_one() are called from a fiber.
class WgmmaQueue {
 public:
  void begin() { warpgroups_.clear(); }

  void fence();
  void add(const WgmmaOp& product);
  void commit();
  void wait(int groups);
  // Fails if a product has yet to write the registers, which are about to be read.
  void check_waited_for(const float* registers);

  // Completes the next group of a waiting warp, the first or a random one. Returns false if no warp
  // waits.
  bool complete_one();
  bool idle() const;

 private:
  static constexpr std::size_t kGroupWarps = kGroupThreads / kWarpThreads;

  struct Pending {
    WgmmaOp product;
    std::array<std::uint32_t, 4> left;  // the contents of the registers at that time
  };
  // The products of a thread since its last commit.
  struct Lane {
    std::vector<Pending> pending;
    bool fenced = false;
  };
  // The sums of unfinished products that add to the same registers.
  struct Sums {
    int width;
    int group;                                    // the last one that adds to them
    std::array<float*, kGroupThreads> registers;  // nullptr after they have their results
    std::vector<float> values;                    // (64, width)
  };
  // The products that were committed together.
  struct Group {
    int number;
    std::array<std::vector<Pending>, kGroupThreads> pending;
    std::vector<ReadSegment> read;
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
  static void complete_group(Warpgroup& warpgroup, std::size_t warp);

  std::vector<Warpgroup> warpgroups_;  // of the block; empty before the first product
};

}  // namespace tilewise::emulation
