// Faults that the checks of instrumented code find (races.h): accesses without an order, and vector
// accesses that are not aligned. CMakeLists.txt compiles this file with -fsanitize=thread.
#include <gtest/gtest.h>

#include <string>

#include "cuda/emulation/test_support.h"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/reduction.cuh"

namespace tilewise::cuda {
namespace {

constexpr Grid kTwoWarps = {1, 64, 4096};
constexpr Grid kTwoBlocks = {2, 64, 4096};

void expect_race(const std::string& message) {
  EXPECT_NE(message.find("are not ordered"), std::string::npos) << message;
}

enum class Order { kNone, kVote, kWarp, kNamed, kBlock };

// Each thread writes a number, and reads that of the thread `distance` before it. Threads run in
// their order: the number has been written, whatever orders the two.
template <Order kOrder>
void neighbour_kernel(unsigned* to, unsigned distance) {
  auto* const numbers = reinterpret_cast<unsigned*>(dynamic_shared());
  numbers[threadIdx.x] = threadIdx.x;
  if (kOrder == Order::kVote) __any_sync(~0u, 1);
  if (kOrder == Order::kWarp) __syncwarp();
  if (kOrder == Order::kNamed) ptx::named_barrier_sync(1, 64);
  if (kOrder == Order::kBlock) __syncthreads();
  to[threadIdx.x] = threadIdx.x < distance ? 0 : numbers[threadIdx.x - distance];
}

TEST(Races, ReadsFollowWritesAfterABarrierOnly) {
  Numbers<unsigned> to(64);
  expect_race(message_of(neighbour_kernel<Order::kNone>, kTwoWarps, to.data(), 1u));
  // A vote makes lanes meet, but orders no memory.
  expect_race(message_of(neighbour_kernel<Order::kVote>, kTwoWarps, to.data(), 1u));
  expect_race(message_of(neighbour_kernel<Order::kWarp>, kTwoWarps, to.data(), 32u));
  EXPECT_EQ(message_of(neighbour_kernel<Order::kNone>, kTwoWarps, to.data(), 0u), "");
  EXPECT_EQ(message_of(neighbour_kernel<Order::kNamed>, kTwoWarps, to.data(), 32u), "");
  EXPECT_EQ(message_of(neighbour_kernel<Order::kBlock>, kTwoWarps, to.data(), 32u), "");
  EXPECT_EQ(to[63], 31u);
}

void warp_kernel(unsigned* to) {
  auto* const numbers = reinterpret_cast<unsigned*>(dynamic_shared());
  const unsigned warp = threadIdx.x / 32 * 32;
  numbers[threadIdx.x] = threadIdx.x;
  __syncwarp();
  to[threadIdx.x] = numbers[warp + (threadIdx.x + 1) % 32];
}

// Writes that follow reads without a barrier.
template <bool kBarrier>
void reuse_kernel(unsigned* to) {
  auto* const numbers = reinterpret_cast<unsigned*>(dynamic_shared());
  numbers[threadIdx.x] = threadIdx.x;
  __syncthreads();
  to[threadIdx.x] = numbers[63 - threadIdx.x];
  if (kBarrier) __syncthreads();
  numbers[threadIdx.x] = 0;
}

TEST(Races, WarpsOrderTheirLanesAndBuffersAreReusedAfterABarrier) {
  Numbers<unsigned> to(64);
  EXPECT_EQ(message_of(warp_kernel, kTwoWarps, to.data()), "");
  expect_race(message_of(reuse_kernel<false>, kTwoWarps, to.data()));
  EXPECT_EQ(message_of(reuse_kernel<true>, kTwoWarps, to.data()), "");
}

template <bool kBarrier>
void copy_kernel(const unsigned* from, unsigned* to) {
  auto* const numbers = reinterpret_cast<unsigned*>(dynamic_shared());
  ptx::cp_async_4(ptx::shared_address(numbers + threadIdx.x), from + threadIdx.x, true);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  if (kBarrier) __syncthreads();
  to[threadIdx.x] = numbers[threadIdx.x / 2];
}

TEST(Races, CopiesAreSeenByOtherThreadsAfterABarrierOnly) {
  Numbers<unsigned> from(64);
  Numbers<unsigned> to(64);
  expect_race(message_of(copy_kernel<false>, kTwoWarps, from.data(), to.data()));
  EXPECT_EQ(message_of(copy_kernel<true>, kTwoWarps, from.data(), to.data()), "");
}

void store_kernel(unsigned* to) { to[threadIdx.x] = blockIdx.x; }
void own_store_kernel(unsigned* to) { to[64 * blockIdx.x + threadIdx.x] = blockIdx.x; }
void add_kernel(float* to) { ptx::red_add(to, 1.0f); }

TEST(Races, BlocksShareMemoryByAtomicOperationsOnly) {
  Numbers<unsigned> to(128);
  Numbers<float> sum(1);
  sum[0] = 0;
  expect_race(message_of(store_kernel, kTwoBlocks, to.data()));
  EXPECT_EQ(message_of(own_store_kernel, kTwoBlocks, to.data()), "");
  EXPECT_EQ(message_of(own_store_kernel, kTwoBlocks, to.data()), "");  // launches are ordered
  EXPECT_EQ(message_of(add_kernel, kTwoBlocks, sum.data()), "");
  EXPECT_EQ(sum[0], 128.0f);
}

template <class Vector>
void load_kernel(const unsigned* from, unsigned* to) {
  const Vector vector = *reinterpret_cast<const Vector*>(from + 8 * threadIdx.x);
  to[threadIdx.x] = vector.x + vector.y;
}

TEST(Races, VectorsAreAligned) {
  Numbers<unsigned> from(520);
  Numbers<unsigned> to(64);
  EXPECT_EQ(message_of(load_kernel<uint2>, kTwoWarps, from.data(), to.data()), "");
  EXPECT_EQ(message_of(load_kernel<uint2>, kTwoWarps, from.data() + 2, to.data()), "");
  const std::string message = message_of(load_kernel<uint2>, kTwoWarps, from.data() + 1, to.data());
  EXPECT_NE(message.find("is not aligned"), std::string::npos) << message;
}

}  // namespace
}  // namespace tilewise::cuda
