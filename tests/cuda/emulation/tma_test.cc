// TMA in the emulation.
#include <gtest/gtest.h>

#include <cstring>

#include "cuda/emulation/hopper_support.h"

namespace tilewise::cuda {
namespace {

constexpr Tensor kTensor = {2, 3, 40, 72};

struct Corner {
  int column, row, head, batch;
};

// Loads the box at `corner` to `to` (16, 128 bytes).
void box_kernel(const CUtensorMap* map, Corner corner, bool waits, unsigned char* to) {
  init_room(1);
  constexpr int kBytes = sizeof(room().boxes[0]);
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_tx(barrier_address(), kBytes);
    ptx::tma_load(ptx::shared_address(room().boxes[0]), map, corner.column, corner.row, corner.head,
                  corner.batch, barrier_address(), ptx::L2Hint::kEvictLast);
  }
  if (waits) ptx::mbarrier_wait(barrier_address(), 0);
  for (int i = static_cast<int>(threadIdx.x); i < kBytes; i += 128) to[i] = room().boxes[0][i];
  ptx::mbarrier_wait(barrier_address(), 0);
}

TEST(Tma, LoadsBoxesAndZerosOutside) {
  Numbers<Number> data(static_cast<std::size_t>(kTensor.count()));
  Numbers<unsigned char> to(kBoxRows * tile::kPanelRowBytes);
  for (int i = 0; i < kTensor.count(); ++i)
    data[static_cast<std::size_t>(i)] = static_cast<Number>(i + 1);
  CUtensorMap map;
  ASSERT_EQ(encode(kTensor, data.data(), kBoxRows, &map), CUDA_SUCCESS);
  for (const Corner& corner : {Corner{0, 0, 0, 0}, Corner{64, 30, 2, 1}, Corner{8, -5, 1, 0},
                               Corner{-16, 3, 0, 1}, Corner{0, 0, 3, 0}, Corner{0, 100, 0, 0}}) {
    ASSERT_EQ(message_of(box_kernel, kRoom, &map, corner, true, to.data()), "");
    for (int row = 0; row < kBoxRows; ++row) {
      for (int column = 0; column < kPanel; ++column) {
        Number number;
        std::memcpy(&number, to.data() + tile::swizzled(row, column * 2), sizeof(number));
        ASSERT_EQ(number,
                  kTensor.at(corner.batch, corner.head, corner.row + row, corner.column + column))
            << row << " " << column;
      }
    }
  }
}

void prefetch_kernel(const void* map, Corner corner) {
  if (threadIdx.x == 0) {
    ptx::tma_prefetch(map, corner.column, corner.row, corner.head, corner.batch,
                      ptx::L2Hint::kEvictLast);
  }
}

TEST(Tma, PrefetchChecksTheTensorMap) {
  Numbers<Number> data(static_cast<std::size_t>(kTensor.count()));
  CUtensorMap map;
  ASSERT_EQ(encode(kTensor, data.data(), kBoxRows, &map), CUDA_SUCCESS);
  EXPECT_EQ(message_of(prefetch_kernel, kRoom, &map, Corner{0, 100, 2, 1}), "");
  map = {};
  const std::string seen = message_of(prefetch_kernel, kRoom, &map, Corner{});
  EXPECT_NE(seen.find("no tensor map"), std::string::npos) << seen;
}

TEST(Tma, BytesLandWhenNoThreadCanGoOn) {
  Numbers<Number> data(static_cast<std::size_t>(kTensor.count()));
  Numbers<unsigned char> to(kBoxRows * tile::kPanelRowBytes);
  CUtensorMap map;
  ASSERT_EQ(encode(kTensor, data.data(), kBoxRows, &map), CUDA_SUCCESS);
  std::memset(data.data(), 0, static_cast<std::size_t>(kTensor.count()) * sizeof(Number));
  for (const bool waits : {false, true}) {
    ASSERT_EQ(message_of(box_kernel, kRoom, &map, Corner{}, waits, to.data()), "");
    for (std::size_t i = 0; i < kBoxRows * tile::kPanelRowBytes; ++i)
      ASSERT_EQ(to[i] == 0, waits) << i;
  }
}

// Stores the box at `corner` from shared memory, where element i of row r is first + 64 r + i.
void store_kernel(const CUtensorMap* map, Corner corner, Number first) {
  for (int i = static_cast<int>(threadIdx.x); i < kBoxRows * kPanel; i += 128) {
    const auto number = static_cast<Number>(first + i);
    std::memcpy(room().boxes[0] + tile::swizzled(i / kPanel, i % kPanel * 2), &number,
                sizeof(number));
  }
  ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x != 0) return;
  ptx::tma_store(map, corner.column, corner.row, corner.head, corner.batch,
                 ptx::shared_address(room().boxes[0]));
  ptx::tma_store_commit();
  ptx::tma_store_wait_read();
}

TEST(Tma, StoresBoxesAndNothingOutside) {
  constexpr Number kFirst = 40000;
  Numbers<Number> data(static_cast<std::size_t>(kTensor.count()));
  CUtensorMap map;
  ASSERT_EQ(encode(kTensor, data.data(), kBoxRows, &map), CUDA_SUCCESS);
  for (const Corner& corner : {Corner{0, 0, 0, 0}, Corner{64, 30, 2, 1}, Corner{8, -5, 1, 0},
                               Corner{-16, 3, 0, 1}, Corner{0, 0, 3, 0}, Corner{0, 100, 0, 0}}) {
    for (int i = 0; i < kTensor.count(); ++i)
      data[static_cast<std::size_t>(i)] = static_cast<Number>(i + 1);
    ASSERT_EQ(message_of(store_kernel, kRoom, &map, corner, kFirst), "");
    for (int i = 0; i < kTensor.count(); ++i) {
      const int column = i % kTensor.columns - corner.column;
      const int row = i / kTensor.columns % kTensor.rows - corner.row;
      const int head = i / kTensor.columns / kTensor.rows % kTensor.heads;
      const int batch = i / kTensor.columns / kTensor.rows / kTensor.heads;
      const bool inside = column >= 0 && column < kPanel && row >= 0 && row < kBoxRows &&
                          head == corner.head && batch == corner.batch;
      ASSERT_EQ(data[static_cast<std::size_t>(i)], inside ? kFirst + row * kPanel + column : i + 1)
          << i;
    }
  }
}

// Loads 256 bytes, and adds them as numbers to `to`.
void bytes_kernel(const float* from, bool fences, float* to) {
  init_room(1);
  constexpr int kBytes = 256;
  float* const numbers = reinterpret_cast<float*>(room().boxes[0]);
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_tx(barrier_address(), kBytes);
    ptx::bulk_load(ptx::shared_address(numbers), from, kBytes, barrier_address());
  }
  ptx::mbarrier_wait(barrier_address(), 0);
  if (threadIdx.x < kBytes / sizeof(float)) numbers[threadIdx.x] *= 2;
  if (fences) ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x != 0) return;
  ptx::bulk_reduce_add(to, ptx::shared_address(numbers), kBytes);
  ptx::tma_store_commit();
  ptx::tma_store_wait();
}

TEST(Tma, CopiesAndAddsContiguousNumbers) {
  Numbers<float> from(64);
  Numbers<float> to(64);
  for (std::size_t i = 0; i < 64; ++i) {
    from[i] = static_cast<float>(i + 1);
    to[i] = 1000;
  }
  ASSERT_EQ(message_of(bytes_kernel, kRoom, from.data(), true, to.data()), "");
  for (std::size_t i = 0; i < 64; ++i) ASSERT_EQ(to[i], 1000 + 2 * static_cast<float>(i + 1)) << i;
  const std::string seen = message_of(bytes_kernel, kRoom, from.data(), false, to.data());
  EXPECT_NE(seen.find("without a fence.proxy.async"), std::string::npos) << seen;
  const std::string far = message_of(bytes_kernel, kRoom, from.data() + 4, true, to.data());
  EXPECT_NE(far.find("not memory of the device"), std::string::npos) << far;
}

TEST(Tma, SwizzlesLikeTheKernels) {
  for (std::uint32_t first = 1024; first < 4096; first += 1024) {
    for (std::int32_t row = 0; row < 32; ++row) {
      for (std::int32_t byte = 0; byte < tile::kPanelRowBytes; ++byte) {
        const auto plain = static_cast<std::uint32_t>(row * tile::kPanelRowBytes + byte);
        const auto offset = static_cast<std::uint32_t>(tile::swizzled(row, byte));
        ASSERT_EQ(emulation::swizzled_address(first + plain), first + offset);
      }
    }
  }
}

TEST(Tma, EncoderRefusesInvalidMaps) {
  Numbers<Number> data(static_cast<std::size_t>(kTensor.count()) + 1);
  CUtensorMap map;
  EXPECT_EQ(encode(kTensor, data.data(), 256, &map), CUDA_SUCCESS);
  EXPECT_EQ(encode(kTensor, data.data(), 257, &map), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode(kTensor, data.data() + 1, 16, &map), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode(kTensor, data.data(), 16, &map, 128), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode(kTensor, data.data(), 16, &map, kPanel, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode({1, 1, 0, 64}, data.data(), 16, &map), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace tilewise::cuda
