// wgmma in the emulation.
#include <gtest/gtest.h>

#include <string>

#include "cuda/emulation/hopper_support.h"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/wgmma_fp8.cuh"
#include "cuda/tile/fragment.h"
#include "math/float8.h"

namespace tilewise::cuda {
namespace {

template <int kWidth>
struct Operands {
  unsigned char left[64 * tile::kPanelRowBytes];       // (64, 64)
  unsigned char right[kWidth * tile::kPanelRowBytes];  // (kWidth, 64), or (64, kWidth) in panels
  std::uint64_t barrier;
};

enum class Form { kSs, kRs, kTt };

// sums (64, kWidth) = left (64, 64) right: kSs, from left and right^T (kWidth, 64) in shared
// memory; kRs, from left in registers and right (64, kWidth); kTt, from left^T and right in shared
// memory.
template <int kWidth, bool kFp16, Form kForm>
void product_kernel(const Number* left_numbers, const CUtensorMap* left, const CUtensorMap* right,
                    float* to) {
  auto& shared = *reinterpret_cast<Operands<kWidth>*>(dynamic_shared());
  const std::uint32_t barrier = ptx::shared_address(&shared.barrier);
  const std::uint32_t right_address = ptx::shared_address(shared.right);
  const std::uint32_t left_address = ptx::shared_address(shared.left);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(barrier, sizeof(shared.left) + sizeof(shared.right));
    ptx::tma_load(left_address, left, 0, 0, 0, 0, barrier, ptx::L2Hint::kEvictLast);
    if (kForm != Form::kSs) {
      for (int panel = 0; panel < kWidth / kPanel; ++panel) {
        ptx::tma_load(ptx::shared_address(shared.right + panel * 64 * tile::kPanelRowBytes), right,
                      panel * kPanel, 0, 0, 0, barrier, ptx::L2Hint::kEvictLast);
      }
    } else {
      ptx::tma_load(right_address, right, 0, 0, 0, 0, barrier, ptx::L2Hint::kEvictLast);
    }
  }
  __syncthreads();
  ptx::mbarrier_wait(barrier, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(threadIdx.x) / 32 * tile::kWarpRows;
  const auto row_of = [&](int r) { return first + tile::lane_row(lane, tile::register_row(r)); };
  const auto column_of = [&](int r) { return tile::lane_column(lane) + tile::register_column(r); };
  std::uint32_t probs[16];
  for (int i = 0; i < 16; ++i) {
    const Number* const pair = left_numbers + row_of(2 * i) * 64 + column_of(2 * i);
    probs[i] = pair[0] | static_cast<std::uint32_t>(pair[1]) << 16;
  }
  float sums[kWidth / 2];
  ptx::wgmma_fence();
  for (int step = 0; step < 4; ++step) {
    const std::uint64_t columns =
        tile::columns_descriptor(right_address, 64 * tile::kPanelRowBytes) +
        static_cast<std::uint64_t>(step * 16 * tile::kPanelRowBytes / 16);
    if (kForm == Form::kTt) {
      ptx::Wgmma<kWidth>::template tt<kFp16>(
          sums,
          tile::columns_descriptor(left_address, tile::kPanelRowBytes) +
              static_cast<std::uint64_t>(step * 16 * tile::kPanelRowBytes / 16),
          columns, step > 0);
    } else if (kForm == Form::kRs) {
      ptx::Wgmma<kWidth>::template rs<kFp16>(sums, probs + 4 * step, columns, step > 0);
    } else {
      const auto offset = static_cast<std::uint64_t>(step * 2);
      ptx::Wgmma<kWidth>::template ss<kFp16>(sums, tile::rows_descriptor(left_address) + offset,
                                             tile::rows_descriptor(right_address) + offset,
                                             step > 0);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::fence_operand(sums);
  for (int r = 0; r < kWidth / 2; ++r) to[row_of(r) * kWidth + column_of(r)] = sums[r];
}

template <int kWidth, bool kFp16, Form kForm>
void expect_product() {
  Numbers<Number> left(64 * 64);
  Numbers<Number> right(64 * kWidth);
  Numbers<float> to(64 * kWidth);
  const auto of_left = [](int row, int k) { return (row * 7 + k * 3) % 11 - 5; };
  const auto of_right = [](int k, int column) { return (k * 5 + column * 3) % 13 - 6; };
  const auto bits = [](int x) {
    return static_cast<Number>(ptx::pack<kFp16>(static_cast<float>(x), 0) & 0xFFFF);
  };
  for (int i = 0; i < 64 * 64; ++i)
    left[static_cast<std::size_t>(i)] =
        bits(kForm == Form::kTt ? of_left(i % 64, i / 64) : of_left(i / 64, i % 64));
  for (int i = 0; i < 64 * kWidth; ++i) {
    right[static_cast<std::size_t>(i)] =
        bits(kForm != Form::kSs ? of_right(i / kWidth, i % kWidth) : of_right(i % 64, i / 64));
  }
  CUtensorMap left_map;
  CUtensorMap right_map;
  ASSERT_EQ(encode({1, 1, 64, 64}, left.data(), 64, &left_map), CUDA_SUCCESS);
  const Tensor tensor = kForm != Form::kSs ? Tensor{1, 1, 64, kWidth} : Tensor{1, 1, kWidth, 64};
  ASSERT_EQ(encode(tensor, right.data(), kForm != Form::kSs ? 64 : kWidth, &right_map),
            CUDA_SUCCESS);
  ASSERT_EQ(message_of(product_kernel<kWidth, kFp16, kForm>,
                       Grid{1, 128, static_cast<int>(sizeof(Operands<kWidth>))}, left.data(),
                       &left_map, &right_map, to.data()),
            "");
  for (int i = 0; i < 64 * kWidth; ++i) {
    int expected = 0;
    for (int k = 0; k < 64; ++k) expected += of_left(i / kWidth, k) * of_right(k, i % kWidth);
    ASSERT_EQ(to[static_cast<std::size_t>(i)], static_cast<float>(expected)) << i;
  }
}

TEST(Wgmma, MultipliesTheOperandsOfItsDescriptors) {
  expect_product<64, false, Form::kSs>();
  expect_product<64, true, Form::kRs>();
  expect_product<64, false, Form::kTt>();
  expect_product<64, true, Form::kTt>();
  expect_product<128, true, Form::kSs>();
  expect_product<128, false, Form::kRs>();
  expect_product<128, false, Form::kTt>();
  expect_product<256, false, Form::kSs>();
  expect_product<256, true, Form::kRs>();
}

template <int kWidth>
struct Fp8Operands {
  unsigned char left[64 * tile::kPanelRowBytes];       // (64, 128)
  unsigned char right[kWidth * tile::kPanelRowBytes];  // (kWidth, 128)
};

// sums (64, kWidth) = left (64, 128) right^T, with right (kWidth, 128): kSs, both in shared memory;
// kRs, left of e4m3 in registers, in the order that PTX ISA 9.7.15 draws. Codes in, row after row.
template <int kWidth, bool kE5M2, Form kForm>
void fp8_kernel(const unsigned char* left, const unsigned char* right, float* to) {
  auto& shared = *reinterpret_cast<Fp8Operands<kWidth>*>(dynamic_shared());
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < 64 * 128; i += 128)
    shared.left[tile::swizzled(i / 128, i % 128)] = left[i];
  for (int i = thread; i < kWidth * 128; i += 128)
    shared.right[tile::swizzled(i / 128, i % 128)] = right[i];
  ptx::fence_proxy_async();
  __syncthreads();
  const int lane = thread % 32;
  const int first = thread / 32 * tile::kWarpRows;
  float sums[kWidth / 2];
  ptx::wgmma_fence();
  const std::uint64_t left_rows = tile::rows_descriptor(ptx::shared_address(shared.left));
  const std::uint64_t right_rows = tile::rows_descriptor(ptx::shared_address(shared.right));
  std::uint32_t registers[16];
  for (int i = 0; i < 16; ++i) {
    const int row = first + lane / 4 + i % 2 * 8;
    const int column = i / 4 * 32 + i / 2 % 2 * 16 + lane % 4 * 4;
    registers[i] = 0;
    for (int byte = 0; byte < 4; ++byte)
      registers[i] |= std::uint32_t{left[row * 128 + column + byte]} << 8 * byte;
  }
  for (int step = 0; step < 4; ++step) {
    const auto offset = static_cast<std::uint64_t>(step * 2);
    if (kForm == Form::kRs) {
      ptx::WgmmaFp8<kWidth>::template rs<kE5M2>(sums, registers + 4 * step, right_rows + offset,
                                                step > 0);
    } else {
      ptx::WgmmaFp8<kWidth>::template ss<kE5M2>(sums, left_rows + offset, right_rows + offset,
                                                step > 0);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::fence_operand(sums);
  for (int r = 0; r < kWidth / 2; ++r) {
    const int row = first + tile::lane_row(lane, tile::register_row(r));
    to[row * kWidth + tile::lane_column(lane) + tile::register_column(r)] = sums[r];
  }
}

// Codes of numbers from 2^-1 to 7 or 3.5, of both signs, whose products have exact sums.
template <int kWidth, bool kE5M2, Form kForm>
void expect_fp8_product() {
  Numbers<unsigned char> left(64 * 128);
  Numbers<unsigned char> right(kWidth * 128);
  Numbers<float> to(64 * kWidth);
  const auto value = [](unsigned char code, bool e5m2) {
    return e5m2 ? math::to_float(math::Float8E5M2{code}) : math::to_float(math::Float8E4M3{code});
  };
  for (std::size_t i = 0; i < 64 * 128; ++i)
    left[i] = static_cast<unsigned char>((kE5M2 ? 0x38 : 0x30) + i * 7 % 31 % 16 + i % 3 / 2 * 128);
  for (std::size_t i = 0; i < kWidth * 128; ++i)
    right[i] =
        static_cast<unsigned char>((kE5M2 ? 0x38 : 0x30) + i * 5 % 29 % 16 + i % 5 / 4 * 128);
  ASSERT_EQ(message_of(fp8_kernel<kWidth, kE5M2, kForm>,
                       Grid{1, 128, static_cast<int>(sizeof(Fp8Operands<kWidth>))}, left.data(),
                       right.data(), to.data()),
            "");
  for (std::size_t i = 0; i < 64 * kWidth; ++i) {
    double expected = 0;
    for (std::size_t k = 0; k < 128; ++k) {
      expected +=
          static_cast<double>(value(left[i / kWidth * 128 + k], kE5M2 && kForm != Form::kRs)) *
          static_cast<double>(value(right[i % kWidth * 128 + k], kE5M2));
    }
    ASSERT_EQ(static_cast<double>(to[i]), expected) << i;
  }
}

TEST(Wgmma, MultipliesFp8) {
  expect_fp8_product<64, false, Form::kSs>();
  expect_fp8_product<128, true, Form::kSs>();
  expect_fp8_product<128, false, Form::kRs>();
  expect_fp8_product<64, true, Form::kRs>();
}

// Multiplies a box that the threads have cleared with itself. to (128): one sum of each thread.
void cleared_kernel(bool fences, bool waits, float* to) {
  unsigned char* const boxes = room().boxes[0];
  for (std::size_t i = threadIdx.x; i < sizeof(room().boxes); i += 128) boxes[i] = 0;
  if (fences) ptx::fence_proxy_async();
  if (waits) ptx::named_barrier_sync(2, 128);
  float sums[32];
  const std::uint64_t rows = tile::rows_descriptor(ptx::shared_address(boxes));
  ptx::wgmma_fence();
  ptx::Wgmma<64>::ss<false>(sums, rows, rows, false);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  to[threadIdx.x] = sums[0];
}

TEST(Wgmma, SeesWritesBeforeAFenceAndABarrier) {
  Numbers<float> to(128);
  for (const bool fences : {false, true}) {
    for (const bool waits : {false, true}) {
      const std::string seen = message_of(cleared_kernel, kRoom, fences, waits, to.data());
      if (fences && waits) {
        EXPECT_EQ(seen, "");
        for (std::size_t t = 0; t < 128; ++t) ASSERT_EQ(to[t], 0) << t;
      } else {
        EXPECT_NE(seen.find("without a fence of the async proxy"), std::string::npos) << seen;
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda
