// The Hopper kernel (cuda_sm90): shapes, schedules, windows and numbers for which it has code of
// its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device/support.h"
#include "registry/support.h"
#include "verify/device_copy.h"

namespace tilewise::tests {
namespace {

// The head dimensions that the kernel must support, so that its tests do not pass by refusing.
TEST(Device, HopperKernelCoversItsHeadDimensions) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    for (const std::int64_t dim : {8, 40, 64, 72, 96, 128, 136, 192, 256}) {
      Case c = make_case(Operation::kForward, dtype, {2, 300, 500, 4, 2, dim});
      if (dim == 192) c.value_dim = 128;
      for (const bool causal : {false, true}) {
        c.causal = causal;
        c.sink = c.alibi = causal;
        c.softcap = causal ? 5 : 0;
        c.used = causal ? std::vector<std::int64_t>{500, 77} : std::vector<std::int64_t>{};
        expect_passes("cuda_sm90", c);
      }
    }
  }
}

// Several tiles of queries for each multiprocessor of a small device, more tiles of keys than
// stages, and sequences that end within a tile: every row of the table, with and without a score
// mod.
TEST(Device, HopperKernelComputesManyTiles) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  const struct {
    std::vector<std::int64_t> sizes;
    std::int64_t value_dim;
    bool packed;
  } shapes[] = {{{1, 300, 700, 4, 2, 64}, 64, false},   {{1, 450, 2100, 2, 1, 64}, 64, false},
                {{3, 0, 0, 4, 2, 128}, 128, true},      {{1, 600, 400, 4, 1, 128}, 128, false},
                {{1, 300, 400, 2, 2, 192}, 128, false}, {{1, 200, 300, 3, 1, 256}, 256, false},
                {{2, 500, 900, 2, 1, 128}, 96, false},  {{1, 200, 1400, 2, 1, 160}, 128, false}};
  bool score_mod = false;
  for (const auto& [sizes, value_dim, packed] : shapes) {
    score_mod = !score_mod;
    for (const bool causal : {false, true}) {
      Case c = make_case(Operation::kForward, TILEWISE_BF16, sizes);
      c.value_dim = value_dim;
      c.causal = causal;
      if (causal == score_mod) c.softcap = 4;
      if (packed) {
        c.q_packed = c.k_packed = true;
        c.q_lengths = {150, 0, 290};
        c.k_lengths = {290, 30, 170};
        c.unowned = 5;
      }
      expect_passes("cuda_sm90", c);
    }
  }
}

// Rows of out of another type than Q, which the kernel does not store by TMA: kernels with epilogue
// warps and without, one tile of queries and several.
TEST(Device, HopperKernelStoresAnotherTypeThanQ) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  const std::vector<std::vector<std::int64_t>> shapes = {
      {1, 70, 300, 2, 1, 64}, {1, 300, 300, 2, 2, 128}, {1, 130, 200, 2, 1, 256}};
  for (const std::vector<std::int64_t>& sizes : shapes) {
    for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
      Case c = make_case(Operation::kForward, dtype, sizes);
      c.causal = dtype == TILEWISE_BF16;
      c.output_dtype = TILEWISE_FP32;
      expect_passes("cuda_sm90", c);
    }
  }
}

// Tiles of queries that the scheduler warp sends four at a time: with four tiles of keys, with
// more, and with a window, whose last tiles are scheduled dynamically. The numbers of heads of one
// tile fill some rounds of the blocks exactly, with one more, and with one less. The windows fill
// those of a small device.
TEST(Device, HopperKernelSchedulesTilesInBatches) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  cuda::DeviceInfo device;
  ASSERT_EQ(cuda::find_device(0, &device), TILEWISE_OK);
  const std::int64_t blocks = device.multiprocessors;
  const std::int64_t few = std::min<std::int64_t>(blocks, 4);
  const struct {
    std::int64_t rows, keys, heads, dim, window;
  } shapes[] = {{5, 500, blocks * 5, 64, -1},  {9, 500, blocks * 5 + 1, 128, -1},
                {7, 520, blocks * 9, 128, -1}, {4, 450, blocks * 9 - 1, 64, -1},
                {6, 250, blocks * 6, 256, -1}, {3, 700, blocks * 13 + 2, 64, -1},
                {1300, 1300, few, 128, 512},   {1100, 1100, few + 2, 64, 512},
                {2, 1200, blocks * 6, 64, -1}, {3, 390, blocks * 7, 192, -1}};
  for (const auto& [rows, keys, heads, dim, window] : shapes) {
    Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, rows, keys, heads, 1, dim});
    c.causal = window >= 0;
    c.window_left = window;
    expect_passes("cuda_sm90", c);
  }
}

// Batches of up to 24 sequences, which each block lists by itself, and larger ones, for which a
// kernel runs before: packed, and dense with seqused_q and seqused_k.
TEST(Device, HopperKernelListsSequences) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  std::mt19937 random(static_cast<std::uint32_t>(run_seed()));
  const auto lengths = [&](std::int64_t count, std::int64_t most) {
    std::uniform_int_distribution<std::int64_t> any(-most / 3, most);  // a quarter of them are 0
    std::vector<std::int64_t> of;
    while (std::ssize(of) < count) of.push_back(std::max<std::int64_t>(any(random), 0));
    return of;
  };
  for (const std::int64_t batch : {1, 2, 23, 24, 25, 33, 70}) {
    for (const bool packed : {false, true}) {
      Case c = make_case(Operation::kForward, TILEWISE_BF16, {batch, 50, 150, 2, 1, 64});
      c.causal = batch % 2 == 0;
      c.wide_indices = batch % 3 == 0;
      if (packed) {
        c.q_packed = c.k_packed = true;
        c.q_lengths = lengths(batch, 140);
        c.k_lengths = lengths(batch, 150);
        c.unowned = 3;
      } else {
        c.used = lengths(batch, 150);
        if (batch % 4 < 2) c.used_q = lengths(batch, 50);
      }
      expect_passes("cuda_sm90", c);
    }
  }
}

// Windows that begin in either half of a tile of keys, and windows of few keys. Only rows with
// values that are not finite may be flagged in the workspace: here rows see few keys, and none of
// those by which most rows start, but are not flagged.
TEST(Device, HopperKernelTakesWindows) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const std::int64_t dim : {64, 128, 192}) {
    for (const auto& [left, right] : {std::pair{-1, -1},
                                      {2, 0},
                                      {15, 0},
                                      {0, 9},
                                      {78, 0},
                                      {127, 0},
                                      {150, 20},
                                      {255, 64},
                                      {400, 3}}) {
      Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 300, 500, 2, 1, dim});
      c.value_dim = dim == 64 ? 64 : 128;
      c.window_left = left;
      c.window_right = right;
      expect_passes("cuda_sm90", c);
      const Instance instance(c);
      const std::int64_t written = kCounterBytes + (dim > 128 ? 6 * kHandoverBytes : 0);
      EXPECT_LE(written_workspace("cuda_sm90", instance.request()), written)
          << "D " << dim << " window " << left << ", " << right;
    }
  }
}

// Blocks of the first scores are -inf, in a tile of keys that all rows see whole. The other scores
// are finite, or so small that their probs vanish compared with 1. Partial tiles of keys follow.
TEST(Device, HopperKernelStartsWithScoresOfMinusInfinity) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  constexpr std::int64_t kRow = 128;  // of Q, K
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    for (const std::int64_t left : {std::int64_t{-1}, std::int64_t{300}}) {
      for (const double most : {1.0, -40.0, -800.0}) {
        Case c = make_case(Operation::kForward, dtype, {1, 700, 700, 1, 1, kRow});
        c.causal = true;
        c.window_left = left;
        Instance instance(c);
        // Column 0 of Q is 1: what K has there is added to a product.
        const std::vector<double> q = verify::numbers_of(instance.request().q);
        const std::vector<double> k = verify::numbers_of(instance.request().k);
        set_elements(instance.request().q, [&](std::int64_t i) {
          return i % kRow == 0 ? 1.0 : q[static_cast<std::size_t>(i)];
        });
        set_elements(instance.request().k, [&](std::int64_t i) {
          if (i % kRow != 0) return k[static_cast<std::size_t>(i)];
          const std::int64_t block = i / kRow % 128 / 8;
          const bool begins = block == 0 || block == 5 || block == 10 || block == 15;
          return begins ? -HUGE_VAL : most * std::sqrt(static_cast<double>(kRow));
        });
        expect_as_reference(instance,
                            "most " + std::to_string(most) + " left " + std::to_string(left));
      }
    }
  }
}

// Windows whose edges fuse: windows of a multiple of 128 keys, whose edges cut two tiles of keys
// along the same diagonal. The shapes have tiles that begin before the first key, more keys than
// queries, by a multiple of 128 (the same kernel) and by other numbers (the edges never fuse), both
// alignments, keys after the diagonal, and packed sequences.
TEST(Device, HopperKernelFusesWindowEdges) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  const struct {
    std::int64_t rows, keys, dim, left, right;
    std::int32_t alignment;
  } shapes[] = {{900, 900, 128, 383, 0, TILEWISE_BOTTOM_RIGHT},
                {700, 956, 128, 511, 0, TILEWISE_BOTTOM_RIGHT},
                {640, 740, 128, 383, 0, TILEWISE_BOTTOM_RIGHT},
                {700, 955, 128, 383, 0, TILEWISE_BOTTOM_RIGHT},
                {700, 900, 104, 383, 0, TILEWISE_TOP_LEFT},
                {800, 800, 128, 255, 128, TILEWISE_BOTTOM_RIGHT},
                {900, 900, 128, 384, 127, TILEWISE_BOTTOM_RIGHT}};
  for (const auto& [rows, keys, dim, left, right, alignment] : shapes) {
    for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
      Case c = make_case(Operation::kForward, dtype, {1, rows, keys, 2, 1, dim});
      c.window_left = left;
      c.window_right = right;
      c.alignment = alignment;
      expect_passes("cuda_sm90", c);
    }
  }
  Case c = make_case(Operation::kForward, TILEWISE_BF16, {4, 900, 900, 2, 2, 128});
  c.causal = true;
  c.window_left = 383;
  c.q_packed = c.k_packed = true;
  c.q_lengths = {700, 1, 515, 640};
  c.k_lengths = {700, 129, 900, 640};
  expect_passes("cuda_sm90", c);
}

// Some keys have scores so much larger than the others that their probs overflow, in each part of a
// step with fused edges. The rows that see them take new maxima and are not flagged; rows that do
// not see them must not be affected.
TEST(Device, HopperKernelFusesEdgesWithScoresThatOverflow) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  constexpr std::int64_t kRow = 128;  // of Q, K
  const double scale_log2 = std::sqrt(static_cast<double>(kRow));
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    for (const std::pair<int, int>& large :
         {std::pair{390, 768}, {450, 768}, {440, 441}, {0, 130}, {0, 200}, {250, 251}}) {
      const std::int64_t from = large.first;  // lambdas cannot capture a structured binding
      const std::int64_t to = large.second;
      const double most = dtype == TILEWISE_BF16 ? 110 : 60;  // as exponents, 158 and 86
      Case c = make_case(Operation::kForward, dtype, {1, 768, 768, 1, 1, kRow});
      c.causal = true;
      c.window_left = 383;
      Instance instance(c);
      // Column 0 of Q is 1: what K has there is added to a product.
      const std::vector<double> q = verify::numbers_of(instance.request().q);
      const std::vector<double> k = verify::numbers_of(instance.request().k);
      set_elements(instance.request().q, [&](std::int64_t i) {
        return i % kRow == 0 ? 1.0 : q[static_cast<std::size_t>(i)];
      });
      set_elements(instance.request().k, [&](std::int64_t i) {
        if (i % kRow != 0) return k[static_cast<std::size_t>(i)];
        return from <= i / kRow && i / kRow < to ? most * scale_log2 : 0.0;
      });
      const std::string what = "keys " + std::to_string(from) + " to " + std::to_string(to);
      expect_as_reference(instance, what);
      EXPECT_LE(written_workspace("cuda_sm90", instance.request()), kCounterBytes) << what;
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
