#include "cuda/emulation/cluster.h"

namespace tilewise::emulation {
namespace {

// Bits of a cluster's address: that it is one, and the rank of its block.
constexpr std::uint32_t kCluster = 1u << 31;
constexpr std::uint32_t kRank = 1u << 30;

std::uint32_t rank_of(const Block& block) { return static_cast<std::uint32_t>(block.number % 2); }

}  // namespace

void meet_cluster() {
  Block& own = block();
  if (own.peer == nullptr) fail("barrier.cluster: the block is not in a cluster, or alone in it");
  Block& peer = *own.peer;
  const int threads = machine().launch.threads;
  if (++own.at_cluster < threads || peer.at_cluster < threads)
    return wait_for(&own.at_cluster, "waits for its cluster", 0);
  for (Block* const each : {&own, &peer}) {
    const InBlockOf current(*each);
    each->at_cluster = 0;
    each->knows_peer = true;
    each->shared.meet();
    each->barriers.meet();
    each->races.meet_block();
    wake(&each->at_cluster);
  }
}

std::uint32_t to_cluster(std::uint32_t address, int rank) {
  if (rank < 0 || rank > 1) fail("mapa: there is no block %d in the cluster", rank);
  return address | kCluster | (rank == 1 ? kRank : 0);
}

InBlockOf::InBlockOf(std::uint32_t cluster_address) : before_(machine().block) {
  if ((cluster_address & kCluster) == 0) fail("address %u was not made by mapa", cluster_address);
  address_ = cluster_address & ~(kCluster | kRank);
  if (((cluster_address & kRank) != 0 ? 1u : 0u) == rank_of(*before_)) return;
  if (!before_->knows_peer) fail("the other block of the cluster may not have begun");
  if (before_->peer == nullptr) fail("the other block of the cluster has ended");
  machine().block = before_->peer;
}

}  // namespace tilewise::emulation
