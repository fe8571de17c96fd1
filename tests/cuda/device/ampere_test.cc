// The kernels for Ampere and later (cuda_sm80, cuda_fp32): shapes and masks that have code of their
// own.
#include <gtest/gtest.h>

#include "cuda/device/support.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

const char* ampere_kernel(std::int32_t dtype) {
  return dtype == TILEWISE_FP32 ? "cuda_fp32" : "cuda_sm80";
}

// Sizes that fill no tile, with and without a score mod, in 16 bits and in fp32.
TEST(Device, AmpereKernelsTakeEveryHeadDimension) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16, TILEWISE_FP32}) {
    for (const std::int64_t dim : {1, 33, 40, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256}) {
      for (const bool score_mod : {false, true}) {
        Case c = make_case(Operation::kForward, dtype, {1, 200, 333, 4, 2, dim});
        c.causal = dim % 3 != 0;
        c.value_dim = dim % 5 == 0 ? 256 - dim + 1 : dim;
        c.dropout_p = score_mod ? 0.2 : 0;
        c.softcap = score_mod ? 4 : 0;
        c.output_dtype = dim % 2 == 0 ? TILEWISE_FP32 : 0;
        expect_passes(ampere_kernel(dtype), c);
      }
    }
  }
}

// Likewise gradients, of tiles that more than one head of a group visits.
TEST(Device, AmpereGradientsTakeEveryHeadDimension) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP32}) {
    for (const std::int64_t dim : {1, 33, 64, 100, 128, 130, 256}) {
      for (const bool score_mod : {false, true}) {
        Case c = make_case(Operation::kBackward, dtype, {1, 90, 140, 2, 1, dim});
        c.causal = dim % 3 != 0;
        c.value_dim = dim % 5 == 0 ? 256 - dim + 1 : dim;
        c.dropout_p = score_mod ? 0.2 : 0;
        c.softcap = score_mod ? 4 : 0;
        c.deterministic = score_mod;
        expect_passes(ampere_kernel(dtype), c);
      }
    }
  }
}

// Kernels with tiles for long sequences only.
TEST(Device, AmpereKernelsTakeLongSequences) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int64_t dim : {192, 256}) {
    Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 150, 2100, 2, 1, dim});
    c.value_dim = dim == 192 ? 128 : 256;
    c.causal = dim == 256;
    expect_passes("cuda_sm80", c);
  }
}

// Head dimensions for which some devices have kernels with pairs of warps: several tiles of keys,
// sizes that fill none, rows that see no key, and tiles of keys that only some warps of a block
// see.
TEST(Device, AmpereKernelsTakeWideHeads) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    for (int mask = 0; mask < 7; ++mask) {
      Case c = make_case(Operation::kForward, dtype, {mask == 4 ? 2 : 1, 190, 333, 2, 1, 256});
      c.causal = mask == 1 || mask == 3;
      if (mask == 1) c.q_len = 400;
      if (mask == 2) c.window_left = 70, c.window_right = 9, c.value_dim = 200;
      if (mask == 3)
        c.alignment = TILEWISE_TOP_LEFT, c.distribution = verify::Distribution::kOutlierElements;
      if (mask == 4) {
        c.q_packed = c.k_packed = true;
        c.q_lengths = {130, 33};
        c.k_lengths = {0, 145};
        c.unowned = 3;
        c.output_dtype = TILEWISE_FP32;
      }
      if (mask == 5) {
        c.slices = {{0, 100, 3, 90, 1, -1}, {50, 140, 60, 260, 0, 1}, {20, 140, 0, 70, 3, -1}};
        c.slice_heads = true;
        c.head_dim = 232;
        c.storage = verify::Storage::kPadded;
      }
      if (mask == 6) {  // long enough for the kernels of eight warps
        c.q_len = 140, c.k_len = 2100, c.heads = 1, c.causal = true;
        c.distribution = verify::Distribution::kOutlierElements;
      }
      expect_passes("cuda_sm80", c);
    }
  }
}

// More slices than shared memory has room for. Some are of one head, and some overlap.
TEST(Device, AmpereKernelsTakeManySlices) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP32}) {
    for (const std::int64_t count : {31, 33, 300}) {
      Case c = make_case(Operation::kForward, dtype, {2, 260, 700, 4, 2, 64});
      for (std::int64_t s = 0; s < count; ++s) {
        const std::int64_t k = s * 680 / count;
        c.slices.push_back(
            {s % 50, 200 + s % 60, k, k + 1 + s % 20, s % 4, s % 3 == 0 ? s % 4 : -1});
      }
      expect_passes(ampere_kernel(dtype), c);
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
