// Instructions of a warp in the emulation, cp.async, and faults that it finds in any kernel.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "cuda/emulation/test_support.h"
#include "cuda/host/load.h"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"

namespace tilewise::cuda {
namespace {

constexpr Grid kWarp = {1, 32, 4096};
constexpr Grid kBlock = {1, 128, 4096};

void warp_kernel(unsigned* votes, int* values /* (32, 4) */) {
  const int lane = static_cast<int>(threadIdx.x);
  votes[lane] = __ballot_sync(~0u, lane % 3 == 0) ^ __reduce_or_sync(~0u, 1u << lane);
  int* const own = values + 4 * lane;
  own[0] = __shfl_xor_sync(~0u, lane, 5);
  own[1] = __shfl_up_sync(~0u, lane, 2);
  own[2] = __shfl_sync(~0u, lane, 7);
  own[3] = __reduce_max_sync(~0u, lane % 7) - __reduce_min_sync(~0u, -lane);
}

TEST(Emulation, LanesExchangeValues) {
  Numbers<unsigned> votes(32);
  Numbers<int> values(128);
  ASSERT_EQ(message_of(warp_kernel, kWarp, votes.data(), values.data()), "");
  for (int lane = 0; lane < 32; ++lane) {
    const int* const own = values.data() + 4 * lane;
    EXPECT_EQ(~votes[static_cast<std::size_t>(lane)], 0x49249249u);
    EXPECT_EQ(own[0], lane ^ 5);
    EXPECT_EQ(own[1], lane < 2 ? lane : lane - 2);
    EXPECT_EQ(own[2], 7);
    EXPECT_EQ(own[3], 6 + 31);
  }
}

// d (16, 8) = a (16, 16) b (8, 16)^T + d, by ldmatrix from tiles without swizzle. With kTransposed,
// b is (16, 8).
template <bool kFp16, bool kTransposed>
void product_kernel(const std::uint16_t* a, const std::uint16_t* b, float* d) {
  auto* const tiles = reinterpret_cast<std::uint16_t*>(dynamic_shared());
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) tiles[i] = a[i];
  for (int i = lane; i < 128; i += 32) tiles[256 + i] = b[i];
  __syncwarp();
  std::uint32_t left[4];
  std::uint32_t right[4];
  ptx::ldmatrix_x4(left, ptx::shared_address(tiles + lane % 16 * 16 + lane / 16 * 8));
  if (kTransposed) {
    ptx::ldmatrix_x4_trans(right, ptx::shared_address(tiles + 256 + lane % 16 * 8));
  } else {
    ptx::ldmatrix_x4(right, ptx::shared_address(tiles + 256 + lane % 8 * 16 + lane / 8 % 2 * 8));
  }
  float own[4];
  for (int i = 0; i < 4; ++i) own[i] = d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2];
  ptx::mma_m16n8k16<kFp16>(own, left, right[0], right[1]);
  for (int i = 0; i < 4; ++i) d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = own[i];
}

template <bool kFp16, bool kTransposed>
void expect_product() {
  Numbers<std::uint16_t> a(256);
  Numbers<std::uint16_t> b(128);
  Numbers<float> d(128);
  const auto of_a = [](int row, int k) { return static_cast<float>((row * 7 + k * 3) % 11 - 5); };
  const auto of_b = [](int k, int column) { return static_cast<float>((k * 5 + column) % 9 - 4); };
  const auto bits = [](float x) {
    return static_cast<std::uint16_t>(ptx::pack<kFp16>(x, 0) & 0xFFFF);
  };
  for (int i = 0; i < 256; ++i) a[static_cast<std::size_t>(i)] = bits(of_a(i / 16, i % 16));
  for (int i = 0; i < 128; ++i) {
    const float x = kTransposed ? of_b(i / 8, i % 8) : of_b(i % 16, i / 16);
    b[static_cast<std::size_t>(i)] = bits(x);
    d[static_cast<std::size_t>(i)] = static_cast<float>(i);
  }
  ASSERT_EQ(message_of(product_kernel<kFp16, kTransposed>, kWarp, a.data(), b.data(), d.data()),
            "");
  for (int i = 0; i < 128; ++i) {
    float expected = static_cast<float>(i);
    for (int k = 0; k < 16; ++k) expected += of_a(i / 8, k) * of_b(k, i % 8);
    EXPECT_EQ(d[static_cast<std::size_t>(i)], expected) << i;
  }
}

TEST(Emulation, MultipliesWhatItLoads) {
  expect_product<false, false>();
  expect_product<false, true>();
  expect_product<true, false>();
  expect_product<true, true>();
}

TEST(Emulation, RoundsToNearestEven) {
  EXPECT_EQ(ptx::pack<false>(1.0f + 0x1p-8f, 1.0f + 0x3p-8f), 0x3F823F80u);
  EXPECT_EQ(ptx::pack<true>(65520.0f, 1.0f + 0x1p-11f), 0x3C007C00u);
  EXPECT_EQ(ptx::pack<false>(std::nanf(""), -0.0f), 0x80007FFFu);
  EXPECT_EQ(ptx::exp2_approx(-127.0f), 0.0f);
  EXPECT_EQ(ptx::exp2_approx(-126.0f), 0x1p-126f);
  EXPECT_EQ(ptx::exp2_approx(0x1p-130f), 1.0f);
}

// Starts two groups of copies and waits for `waited` of them. seen (2)
void copy_kernel(const float* from /* (8) */, int waited, float* seen) {
  auto* const to = reinterpret_cast<float*>(dynamic_shared());
  for (int group = 0; group < 2; ++group) {
    ptx::cp_async_16(ptx::shared_address(to + 4 * group), from + 4 * group);
    ptx::cp_async_commit();
  }
  if (waited == 1) ptx::cp_async_wait<1>();
  if (waited == 2) ptx::cp_async_wait<0>();
  for (int group = 0; group < 2; ++group) seen[group] = to[4 * group + 3];
}

TEST(Emulation, CopiesLandWhenTheyAreWaitedFor) {
  Numbers<float> from(8);
  Numbers<float> seen(2);
  for (std::size_t i = 0; i < 8; ++i) from[i] = static_cast<float>(i);
  for (int waited = 0; waited <= 2; ++waited) {
    ASSERT_EQ(message_of(copy_kernel, Grid{1, 1, 64}, from.data(), waited, seen.data()), "");
    EXPECT_EQ(seen[0] == 3.0f, waited >= 1);
    EXPECT_EQ(seen[1] == 7.0f, waited >= 2);
  }
  EXPECT_NE(message_of(copy_kernel, Grid{1, 1, 64}, from.data() + 1, 0, seen.data())
                .find("no multiple of 16"),
            std::string::npos);
  EXPECT_NE(message_of(copy_kernel, Grid{1, 1, 64}, from.data() + 4, 0, seen.data())
                .find("not memory of the device"),
            std::string::npos);
}

// Each thread reads what its neighbour wrote, after a barrier or without one.
void neighbour_kernel(bool waits, float* seen) {
  auto* const values = reinterpret_cast<float*>(dynamic_shared());
  const unsigned t = threadIdx.x;
  values[t] = 1;
  if (waits) __syncthreads();
  seen[t] = values[(t + 1) % blockDim.x];
}

TEST(Emulation, AMissingBarrierIsFound) {
  Numbers<float> seen(128);
  for (const bool waits : {false, true}) {
    ASSERT_EQ(message_of(neighbour_kernel, kBlock, waits, seen.data()), "");
    int non_finite = 0;
    for (std::size_t t = 0; t < 128; ++t) non_finite += seen[t] != 1.0f ? 1 : 0;
    EXPECT_EQ(non_finite > 0, !waits);
  }
}

enum class Fault {
  kNone,
  kBarrierOfSome,
  kReturnsBeforeBarrier,
  kOtherCollective,
  kLanesMissing,
  kNotInMask,
  kOutside,
  kUnaligned,
  kNotShared,
  kWritesOutside,
};

void faulty_kernel(Fault fault) {
  const unsigned t = threadIdx.x;
  std::uint32_t registers[4];
  const std::uint32_t first = ptx::shared_address(dynamic_shared());
  if (fault == Fault::kBarrierOfSome && t / 32 == 1) __syncwarp(t % 32 < 16 ? 0xFFFFu : ~0u);
  if (fault == Fault::kReturnsBeforeBarrier && t == 77) return;
  if (fault == Fault::kOtherCollective) t % 2 == 0 ? __syncwarp() : (void)__any_sync(~0u, 1);
  if (fault == Fault::kLanesMissing && t % 32 != 9) __syncwarp();
  if (fault == Fault::kNotInMask) __syncwarp(1);
  if (fault == Fault::kOutside) ptx::ldmatrix_x4(registers, first + 4096 - 16 * (t % 32 - 1));
  if (fault == Fault::kUnaligned) ptx::ldmatrix_x4(registers, first + 8);
  if (fault == Fault::kNotShared) ptx::shared_address(&t);
  if (fault == Fault::kWritesOutside && t == 0) dynamic_shared()[4096] = 0;
  __syncthreads();
}

TEST(Emulation, FaultsAreNamed) {
  const struct {
    Fault fault;
    const char* message;
  } faults[] = {
      {Fault::kBarrierOfSome, "thread 48 waits for its warp"},
      {Fault::kReturnsBeforeBarrier, "thread 77 has returned"},
      {Fault::kOtherCollective, "in another collective than lane"},
      {Fault::kLanesMissing, "cannot go on: from thread 0 waits for its warp, thread 9 waits for"},
      {Fault::kNotInMask, "not in the mask"},
      {Fault::kOutside, "outside of shared memory"},
      {Fault::kUnaligned, "no multiple of 16"},
      {Fault::kNotShared, "not in dynamic shared memory"},
      {Fault::kWritesOutside, "wrote outside of its shared memory"},
  };
  for (const auto& [fault, message] : faults) {
    const std::string seen = message_of(faulty_kernel, kBlock, fault);
    EXPECT_NE(seen.find(message), std::string::npos) << seen << ", not: " << message;
    // The fault does not affect the next launch.
    EXPECT_EQ(message_of(faulty_kernel, kBlock, Fault::kNone), "");
  }
}

TEST(Emulation, KernelsGetTheSharedMemoryThatTheyAskFor) {
  const Grid large = {1, 32, 60 * 1024};
  EXPECT_NE(message_of(faulty_kernel, large, Fault::kNone), "");
  EXPECT_NE(load(faulty_kernel, 1 << 20), cudaSuccess);
  EXPECT_EQ(load(faulty_kernel, large.shared_bytes), cudaSuccess);
  EXPECT_EQ(message_of(faulty_kernel, large, Fault::kNone), "");
}

}  // namespace
}  // namespace tilewise::cuda
