// Clusters of two blocks, which run alternately and reach each other's shared memory.
#pragma once

#include <cstdint>

#include "cuda/emulation/machine.h"

namespace tilewise::emulation {

// Waits for all threads of both blocks, of which none may have returned.
void meet_cluster();

// The address, for both blocks, of what lies at `address` in block `rank` of the cluster.
std::uint32_t to_cluster(std::uint32_t address, int rank);

// While it lives, the block that an address of to_cluster() belongs to is the current one.
class InBlockOf {
 public:
  explicit InBlockOf(std::uint32_t cluster_address);
  // Outside of fibers, too.
  explicit InBlockOf(Block& block) : before_(machine().block) { machine().block = &block; }
  ~InBlockOf() { machine().block = before_; }
  InBlockOf(const InBlockOf&) = delete;
  InBlockOf& operator=(const InBlockOf&) = delete;

  std::uint32_t address() const { return address_; }  // in that block

 private:
  Block* before_;
  std::uint32_t address_ = 0;
};

}  // namespace tilewise::emulation
