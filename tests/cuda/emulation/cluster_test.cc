// Clusters of two blocks in the emulation: what they exchange, and what is wrong with a kernel.
#include <gtest/gtest.h>

#include <string>

#include "cuda/emulation/hopper_support.h"
#include "cuda/ptx/cluster.cuh"

namespace tilewise::cuda {
namespace {

constexpr Grid kPairs = {6, 128, sizeof(Room), 2};
constexpr Tensor kTensor = {1, 1, 2 * kBoxRows, kPanel};
constexpr std::uint32_t kBytes = kBoxRows * tile::kPanelRowBytes;

enum class Fault {
  kNone,
  kReachesTooEarly,
  kReachesTooLate,
  kNotMapped,
  kCopyNotFenced,
  kCopyOverwritten,
  kSyncsAlone
};

int rank() { return static_cast<int>(blockIdx.x % 2); }

// Each block loads half of the tensor for both, sends its number to the other, and copies a box
// there. `to` gets, for each block, both halves and the box of the other block.
void exchange_kernel(Fault fault, const CUtensorMap* map, Number* to) {
  init_room(1);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(ptx::shared_address(&room().other), 1);
    ptx::fence_mbarrier_init();
  }
  const std::uint32_t peer_barrier = ptx::cluster_address(barrier_address(), 1 - rank());
  if (fault == Fault::kReachesTooEarly) ptx::mbarrier_arrive_cluster(peer_barrier);
  if (fault != Fault::kSyncsAlone || rank() == 0) ptx::cluster_sync();
  const std::uint32_t box = ptx::shared_address(room().boxes[rank()]);
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_tx(barrier_address(), 2 * kBytes);
    ptx::tma_load_pair(box, map, 0, rank() * kBoxRows, 0, 0, barrier_address(),
                       ptx::L2Hint::kEvictLast);
  }
  ptx::mbarrier_wait(barrier_address(), 0);
  auto* const own = reinterpret_cast<Number*>(room().boxes[2]);
  for (unsigned i = threadIdx.x; i < kBytes / sizeof(Number); i += 128)
    own[i] = static_cast<Number>(blockIdx.x + 1);
  if (fault != Fault::kCopyNotFenced) ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    const std::uint32_t full = ptx::shared_address(&room().other);
    const std::uint32_t there = ptx::shared_address(room().boxes[3]);
    ptx::mbarrier_arrive_expect_tx(full, kBytes);
    ptx::bulk_copy_cluster(
        fault == Fault::kNotMapped ? there : ptx::cluster_address(there, 1 - rank()),
        ptx::shared_address(own), kBytes, ptx::cluster_address(full, 1 - rank()));
    if (fault == Fault::kCopyOverwritten) own[0] = 0;
    ptx::fence_proxy_async();
  }
  __syncthreads();
  ptx::mbarrier_wait(ptx::shared_address(&room().other), 0);
  constexpr unsigned kNumbers = kBytes / sizeof(Number);
  constexpr unsigned kCount = 3 * kNumbers;
  for (unsigned i = threadIdx.x; i < kCount; i += 128) {
    const unsigned from = i / kNumbers;  // boxes 0, 1 and 3
    to[blockIdx.x * kCount + i] =
        reinterpret_cast<const Number*>(room().boxes[from == 2 ? 3 : from])[i % kNumbers];
  }
  if (fault == Fault::kReachesTooLate) {
    if (rank() == 0) return;
    emulation::meet_blocks();
    ptx::mbarrier_arrive_cluster(peer_barrier);
  }
  ptx::cluster_sync();
}

struct Outcome {
  std::string message;
  Numbers<Number> to = Numbers<Number>(6 * 3 * kBytes / sizeof(Number));
};
void run(Fault fault, Outcome* result) {
  Numbers<Number> data(static_cast<std::size_t>(kTensor.count()));
  for (int i = 0; i < kTensor.count(); ++i)
    data[static_cast<std::size_t>(i)] = static_cast<Number>(i + 1);
  CUtensorMap map;
  ASSERT_EQ(encode(kTensor, data.data(), kBoxRows, &map), CUDA_SUCCESS);
  result->message = message_of(exchange_kernel, kPairs, fault, &map, result->to.data());
}

TEST(Cluster, BlocksExchangeWhatTheyLoadAndSend) {
  Outcome result;
  run(Fault::kNone, &result);
  ASSERT_EQ(result.message, "");
  constexpr std::size_t kBox = kBytes / sizeof(Number);
  for (std::size_t block = 0; block < 6; ++block) {
    const Number* const boxes = result.to.data() + block * 3 * kBox;
    for (int row = 0; row < 2 * kBoxRows; ++row) {
      for (int column = 0; column < kPanel; ++column) {
        const std::size_t at =
            static_cast<std::size_t>(row / kBoxRows) * kBox +
            static_cast<std::size_t>(tile::swizzled(row % kBoxRows, column * 2)) / sizeof(Number);
        ASSERT_EQ(boxes[at], kTensor.at(0, 0, row, column)) << block << " " << row << " " << column;
      }
    }
    for (std::size_t i = 0; i < kBox; ++i)
      ASSERT_EQ(boxes[2 * kBox + i], static_cast<Number>((block ^ 1) + 1)) << block << " " << i;
  }
}

TEST(Cluster, FaultsAreFound) {
  const struct {
    Fault fault;
    const char* message;
  } faults[] = {{Fault::kReachesTooEarly, "may not have begun"},
                {Fault::kReachesTooLate, "has ended"},
                {Fault::kNotMapped, "was not made by mapa"},
                {Fault::kCopyNotFenced, "without a fence.proxy.async"},
                {Fault::kCopyOverwritten, "had still to read was written"},
                {Fault::kSyncsAlone, "may not have begun"}};
  for (const auto& [fault, message] : faults) {
    Outcome result;
    run(fault, &result);
    EXPECT_NE(result.message.find(message), std::string::npos)
        << static_cast<int>(fault) << ": " << result.message;
  }
}

}  // namespace
}  // namespace tilewise::cuda
