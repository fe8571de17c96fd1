// Barriers and setmaxnreg of the emulation, and blocks that wait for each other.
#include <gtest/gtest.h>

#include <string>

#include "cuda/emulation/hopper_support.h"
#include "cuda/ptx/memory_order.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/setmaxnreg.cuh"

namespace tilewise::cuda {
namespace {

// Thread t arrives in phase p after phase p - 1 has ended.
//   seen (threads): the number of arrivals before the last phase ended
void phases_kernel(int phases, unsigned* seen) {
  init_room(128);
  unsigned& count = *reinterpret_cast<unsigned*>(room().boxes[0]);
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  for (int phase = 0; phase < phases; ++phase) {
    ++count;
    ptx::mbarrier_arrive(barrier_address());
    ptx::mbarrier_wait(barrier_address(), static_cast<std::uint32_t>(phase % 2));
    if (phase == phases - 1) seen[threadIdx.x] = count;
    ptx::named_barrier_sync(3, 128);
  }
  ptx::mbarrier_wait(barrier_address(), static_cast<std::uint32_t>((phases - 1) % 2));
  ptx::mbarrier_wait(barrier_address(), static_cast<std::uint32_t>((phases - 1) % 2));  // still is
}

TEST(Mbarrier, PhasesFollowEachOther) {
  Numbers<unsigned> seen(128);
  for (const int phases : {1, 2, 5}) {
    ASSERT_EQ(message_of(phases_kernel, kRoom, phases, seen.data()), "");
    for (std::size_t t = 0; t < 128; ++t) EXPECT_EQ(seen[t], 128u * static_cast<unsigned>(phases));
  }
}

// seen (1): 1 once a barrier that begins anew, with another number of arrivals, has been waited
// for.
void invalidate_kernel(unsigned* seen) {
  init_room(2);
  __syncthreads();
  if (threadIdx.x != 0) return;
  ptx::mbarrier_invalidate(barrier_address());
  ptx::mbarrier_init(barrier_address(), 1);
  ptx::mbarrier_arrive(barrier_address());
  ptx::mbarrier_wait(barrier_address(), 0);
  seen[0] = 1;
}
void use_invalid_kernel(unsigned*) {
  init_room(1);
  __syncthreads();
  if (threadIdx.x != 0) return;
  ptx::mbarrier_invalidate(barrier_address());
  ptx::mbarrier_arrive(barrier_address());
}

TEST(Mbarrier, IsInitialisedAnewAfterItsEnd) {
  Numbers<unsigned> seen(1);
  ASSERT_EQ(message_of(invalidate_kernel, kRoom, seen.data()), "");
  EXPECT_EQ(seen[0], 1u);
  EXPECT_NE(message_of(use_invalid_kernel, kRoom, seen.data()).find("there is no mbarrier"),
            std::string::npos);
}

// Warp 0 passes a value to warp 1 without waiting for it.
void pass_value_kernel(unsigned* seen) {
  init_room(1);
  unsigned& value = *reinterpret_cast<unsigned*>(room().boxes[0]);
  if (threadIdx.x < 32) {
    value = 7;
    ptx::named_barrier_arrive(1, 64);
  } else if (threadIdx.x < 64) {
    ptx::named_barrier_sync(1, 64);
    seen[threadIdx.x % 32] = value;
  }
}

TEST(NamedBarrier, CountsArrivals) {
  Numbers<unsigned> seen(32);
  ASSERT_EQ(message_of(pass_value_kernel, kRoom, seen.data()), "");
  for (std::size_t lane = 0; lane < 32; ++lane) EXPECT_EQ(seen[lane], 7u);
}

enum class Between { kNothing, kNamed, kBlock, kMBarrier };

// Two warps arrive for each other and wait, twice. The first of them may arrive at its own barrier
// again before the second has waited there for the first time.
void partners_kernel(Between between) {
  init_room(64);
  const std::uint32_t own = threadIdx.x / 32;
  for (int time = 0; time < 2; ++time) {
    ptx::named_barrier_arrive(1 + own, 64);
    ptx::named_barrier_sync(1 + (own ^ 1), 64);
    if (time == 1 || between == Between::kNothing) continue;
    if (between == Between::kNamed) ptx::named_barrier_sync(3, 64);
    if (between == Between::kBlock) __syncthreads();
    if (between != Between::kMBarrier) continue;
    ptx::mbarrier_arrive(barrier_address());
    ptx::mbarrier_wait(barrier_address(), 0);
  }
}

TEST(NamedBarrier, ReuseBeforeThePhaseEndsIsFound) {
  constexpr Grid kPair = {1, 64, sizeof(Room)};
  for (const Between between : {Between::kNamed, Between::kBlock, Between::kMBarrier})
    EXPECT_EQ(message_of(partners_kernel, kPair, between), "");
  const std::string seen = message_of(partners_kernel, kPair, Between::kNothing);
  EXPECT_NE(seen.find("arrives without knowing that the phase before is over"), std::string::npos)
      << seen;
}

// The first warpgroup of three gives registers to the others.
template <int kFewer, int kMore>
void registers_kernel() {
  if (threadIdx.x < 128) {
    ptx::setmaxnreg_dec<kFewer>();
  } else {
    ptx::setmaxnreg_inc<kMore>();
  }
}

TEST(Setmaxnreg, RegistersAreCounted) {
  constexpr Grid kThree = {1, 384};
  EXPECT_EQ(message_of(registers_kernel<40, 232>, kThree), "");
  EXPECT_EQ(message_of(registers_kernel<24, 240>, kThree), "");
  const struct {
    void (*kernel)();
    const char* message;
  } faults[] = {{registers_kernel<40, 240>, "waits for registers, asks for 240"},
                {registers_kernel<176, 168>, "setmaxnreg.dec: to 176 from 168"},
                {registers_kernel<40, 160>, "setmaxnreg.inc: to 160 from 168"}};
  for (const auto& [kernel, message] : faults) {
    const std::string seen = message_of(kernel, kThree);
    EXPECT_NE(seen.find(message), std::string::npos) << seen << ", not: " << message;
  }
}

// One block sets the flag for which the others wait, wherever it comes in their order.
void counter_kernel(unsigned setter, unsigned long long* flag, unsigned* count) {
  if (blockIdx.x == setter) ptx::store_release(flag, 1);
  while (ptx::load_acquire(flag) != 1) {
  }
  atomicAdd(count, 1u);
}

TEST(Blocks, MayWaitForEachOther) {
  Numbers<unsigned long long> flag(1);
  Numbers<unsigned> count(1);
  for (const unsigned setter : {0u, 3u}) {
    flag[0] = count[0] = 0;
    EXPECT_EQ(message_of(counter_kernel, Grid{4, 1}, setter, flag.data(), count.data()), "");
    EXPECT_EQ(count[0], 4u);
  }
  flag[0] = 0;
  constexpr unsigned kNobody = 4;
  EXPECT_NE(message_of(counter_kernel, Grid{4, 1}, kNobody, flag.data(), count.data())
                .find("the blocks wait for each other"),
            std::string::npos);
}

}  // namespace
}  // namespace tilewise::cuda
