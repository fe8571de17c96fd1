// The emulation finds what is wrong with a kernel for compute capability 9.0.
#include <gtest/gtest.h>

#include <string>

#include "cuda/emulation/hopper_support.h"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/pdl.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace tilewise::cuda {
namespace {

enum class Fault {
  kNone,
  kNoSuchBarrier,
  kArrivesTwice,
  kWaitsForEver,
  kWrongBytes,
  kWritesToBarrier,
  kBarrierNotFenced,
  kCopyNotAligned,
  kCopyFromNowhere,
  kNoMap,
  kEndsBeforeCopy,
  kNamedForOthers,
  kNamedOfSome,
  kNoProductFence,
  kProductBeforeCopy,
  kCopyDuringProduct,
  kSumsTooEarly,
  kSumsWritten,
  kOperandWritten,
  kOtherDescriptor,
  kOtherLayout,
  kWarpMissing,
  kEndsBeforeProduct,
  kStoreNotFenced,
  kStoreOverwritten,
  kEndsBeforeStore,
};

// Loads a box, multiplies it with itself in both ways, and stores it, with one fault.
void faulty_kernel(Fault fault, const CUtensorMap* map) {
  const unsigned t = threadIdx.x;
  const auto is = [fault](Fault other) { return fault == other; };
  const std::uint32_t barrier = barrier_address();
  const std::uint32_t box = ptx::shared_address(room().boxes[0]);
  if (t == 0) {
    ptx::mbarrier_init(barrier, 1);
    if (!is(Fault::kBarrierNotFenced)) ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (is(Fault::kNoSuchBarrier)) ptx::mbarrier_arrive(barrier + 8);
  if (is(Fault::kWritesToBarrier)) room().barrier = 1;
  if (is(Fault::kNamedForOthers)) ptx::named_barrier_sync(1, t < 64 ? 128 : 96);
  if (is(Fault::kNamedOfSome) && t >= 32) ptx::named_barrier_sync(1, 128);
  constexpr std::uint32_t kBoxBytes = sizeof(room().boxes[0]);
  const auto copy = [&](int which) {
    ptx::tma_load(
        box + static_cast<std::uint32_t>(which) * kBoxBytes + (is(Fault::kCopyNotAligned) ? 64 : 0),
        is(Fault::kNoMap) ? map + 1 : map, 0, is(Fault::kCopyFromNowhere) ? 60 : 0, 0, 0, barrier,
        ptx::L2Hint::kEvictFirst);
  };
  if (t == 0) {
    ptx::mbarrier_arrive_expect_tx(barrier, 4 * kBoxBytes + (is(Fault::kWrongBytes) ? 16 : 0));
    for (int which = 0; which < 4; ++which) copy(which);
    if (is(Fault::kArrivesTwice)) ptx::mbarrier_arrive(barrier);
  }
  __syncthreads();
  if (is(Fault::kEndsBeforeCopy)) return;
  if (!is(Fault::kProductBeforeCopy)) ptx::mbarrier_wait(barrier, 0);
  if (is(Fault::kWaitsForEver)) ptx::mbarrier_wait(barrier, 1);

  float sums[32];
  std::uint32_t probs[4] = {};
  if (!is(Fault::kNoProductFence)) ptx::wgmma_fence();
  std::uint64_t rows = tile::rows_descriptor(box);
  if (is(Fault::kOtherDescriptor) && t == 77) rows += 2;
  if (is(Fault::kOtherLayout)) rows |= std::uint64_t{1} << 63;
  if (is(Fault::kWarpMissing) && t >= 96) return;
  ptx::Wgmma<64>::ss<false>(sums, rows, tile::rows_descriptor(box), false);
  ptx::Wgmma<64>::rs<false>(sums, probs, tile::columns_descriptor(box, 1024), true);
  ptx::wgmma_commit();
  if (is(Fault::kEndsBeforeProduct)) return;
  if (is(Fault::kSumsTooEarly)) ptx::fence_operand(sums);
  if (is(Fault::kSumsWritten)) sums[5] = 0;
  if (is(Fault::kOperandWritten) && t == 9) probs[2] = 1;
  if (is(Fault::kCopyDuringProduct) && t == 0) {
    ptx::mbarrier_arrive_expect_tx(barrier, kBoxBytes);
    copy(2);
  }
  ptx::wgmma_wait<0>();
  ptx::fence_operand(sums);
  if (is(Fault::kCopyDuringProduct)) ptx::mbarrier_wait(barrier, 1);

  __syncthreads();
  if (t != 0) return;
  room().boxes[0][5] ^= 1;
  if (!is(Fault::kStoreNotFenced)) ptx::fence_proxy_async();
  ptx::tma_store(map, 0, 0, 0, 0, box);
  ptx::tma_store_commit();
  if (is(Fault::kStoreOverwritten)) room().boxes[0][5] ^= 1;
  if (!is(Fault::kEndsBeforeStore)) ptx::tma_store_wait_read();
}

TEST(Hopper, FaultsAreNamed) {
  const struct {
    Fault fault;
    const char* message;
  } faults[] = {
      {Fault::kNoSuchBarrier, "there is no mbarrier at address"},
      {Fault::kArrivesTwice, "one more than the 1 of the phase"},
      {Fault::kWaitsForEver, "cannot go on: from thread 0 waits for the mbarrier at"},
      {Fault::kWrongBytes, "cannot go on: from thread 0 waits for the mbarrier at"},
      {Fault::kWritesToBarrier, "a thread wrote to the mbarrier"},
      {Fault::kBarrierNotFenced, "no fence.mbarrier_init"},
      {Fault::kCopyNotAligned, "no multiple of 128"},
      {Fault::kCopyFromNowhere, "is not memory of the device"},
      {Fault::kNoMap, "no tensor map at"},
      {Fault::kEndsBeforeCopy, "ended before a copy"},
      {Fault::kNamedForOthers, "threads, the others arrived for"},
      {Fault::kNamedOfSome, "thread 32 waits at named barrier 1"},
      {Fault::kNoProductFence, "no wgmma.fence"},
      {Fault::kProductBeforeCopy, "what a copy has not written yet"},
      {Fault::kCopyDuringProduct, "what a product reads in shared memory has changed"},
      {Fault::kSumsTooEarly, "before a wait for it"},
      {Fault::kSumsWritten, "the registers of its sums were written"},
      {Fault::kOperandWritten, "registers that a product reads have changed"},
      {Fault::kOtherDescriptor, "lanes ask for different products"},
      {Fault::kOtherLayout, "asks for a layout that is not emulated"},
      {Fault::kWarpMissing, "from thread 0 waits for its warpgroup, thread 96 has returned"},
      {Fault::kEndsBeforeProduct, "ended before a product"},
      {Fault::kStoreNotFenced, "without a fence.proxy.async"},
      {Fault::kStoreOverwritten, "a bulk store had still to read in shared memory was written"},
      {Fault::kEndsBeforeStore, "ended before a copy"},
  };
  Numbers<Number> data(64 * kPanel);
  CUtensorMap maps[2] = {};
  // More rows than there are.
  ASSERT_EQ(encode({1, 1, 128, kPanel}, data.data(), kBoxRows, &maps[0]), CUDA_SUCCESS);
  for (const auto& [fault, message] : faults) {
    const std::string seen = message_of(faulty_kernel, kRoom, fault, &maps[0]);
    EXPECT_NE(seen.find(message), std::string::npos) << seen << ", not: " << message;
    // The fault does not affect the next launch.
    EXPECT_EQ(message_of(faulty_kernel, kRoom, Fault::kNone, &maps[0]), "");
  }
}

enum class Haste { kNone, kPrefetches, kStores, kNeverWaits };

// A kernel that may begin before the previous one has ended, and accesses memory too early.
void hasty_kernel(Haste haste, const CUtensorMap* map) {
  const bool first = threadIdx.x == 0;
  ptx::prefetch_tensormap(map);
  if (first && haste == Haste::kPrefetches)
    ptx::tma_prefetch(map, 0, 0, 0, 0, ptx::L2Hint::kEvictLast);
  if (first && haste == Haste::kStores)
    ptx::tma_store(map, 0, 0, 0, 0, ptx::shared_address(room().boxes[0]));
  if (threadIdx.x == 77 && haste == Haste::kNeverWaits) return;
  ptx::wait_for_dependency();
  if (first) ptx::tma_prefetch(map, 0, 0, 0, 0, ptx::L2Hint::kEvictLast);
}

TEST(Pdl, KernelsThatBeginEarlyMustWait) {
  const struct {
    Haste haste;
    const char* message;
  } cases[] = {{Haste::kPrefetches, "before griddepcontrol.wait"},
               {Haste::kStores, "before griddepcontrol.wait"},
               {Haste::kNeverWaits, "thread 77 ended without griddepcontrol.wait"}};
  Numbers<Number> data(64 * kPanel);
  CUtensorMap map = {};
  ASSERT_EQ(encode({1, 1, 64, kPanel}, data.data(), kBoxRows, &map), CUDA_SUCCESS);
  for (const auto& [haste, message] : cases) {
    const std::string seen = message_of(launch_early(hasty_kernel, kRoom, nullptr, haste, &map));
    EXPECT_NE(seen.find(message), std::string::npos) << seen << ", not: " << message;
    EXPECT_EQ(message_of(launch_early(hasty_kernel, kRoom, nullptr, Haste::kNone, &map)), "");
    // A kernel launched without PDL needs no griddepcontrol.wait.
    if (haste != Haste::kStores) {
      EXPECT_EQ(message_of(hasty_kernel, kRoom, haste, &map), "");
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda
