// Caches of fp8 on cuda_decode: every head dimension and number of rows, the types of Q and out,
// pages, scales, options, and numbers that are not finite beside a mask. All codes are in
// registry/fp8_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cuda/device/fp8_support.h"

namespace tilewise::tests {
namespace {

constexpr verify::Descale kScalesOfBlocks = verify::Descale::kBlocks;

bool decodes_fp8() {
  cuda::DeviceInfo device;
  return has_device() && cuda::find_device(0, &device) == TILEWISE_OK && device.major >= 9;
}

Case decode_case(std::int32_t dtype, const std::vector<std::int64_t>& sizes,
                 verify::Descale descale = verify::Descale::kHeads,
                 std::int32_t q_dtype = TILEWISE_BF16) {
  Case c = make_case(Operation::kForward, dtype, sizes);
  c.descale = descale;
  c.q_dtype = q_dtype;
  return c;
}

void expect_decodes(const Case& c, const verify::Judge::Edit& edit = {}) {
  expect_passes("cuda_decode", c, edit);
}

// Rows: those of one warp, of two and of four, and more than a segment has.
TEST(Device, DecodeFp8CoversHeadDimensionsAndRows) {
  if (!decodes_fp8()) GTEST_SKIP() << "no device since Hopper";
  for (const std::int32_t dtype : kFp8Dtypes) {
    for (const std::int64_t dim : {16, 64, 80, 128, 256}) {
      for (const std::int64_t queries : {1, 9, 20, 40}) {
        Case c = decode_case(dtype, {2, queries, 400, 2, 1, dim});
        c.causal = c.sink = dtype == TILEWISE_E4M3;
        c.used = queries == 9 ? std::vector<std::int64_t>{400, 77} : std::vector<std::int64_t>{};
        expect_decodes(c);
      }
    }
    Case narrow = decode_case(dtype, {1, 3, 300, 1, 1, 144});
    narrow.value_dim = 48;
    expect_decodes(narrow);
    std::swap(narrow.head_dim, narrow.value_dim);
    narrow.lse = false;
    expect_decodes(narrow);
  }
}

TEST(Device, DecodeFp8TakesEveryTypeOfQueriesAndOutputs) {
  if (!decodes_fp8()) GTEST_SKIP() << "no device since Hopper";
  for (const std::int32_t dtype : kFp8Dtypes) {
    for (const std::int32_t q : {dtype, std::int32_t{TILEWISE_BF16}, std::int32_t{TILEWISE_FP16},
                                 std::int32_t{TILEWISE_FP32}}) {
      for (const std::int32_t out : {TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16}) {
        Case c = decode_case(dtype, {2, 2, 300, 6, 2, 128}, verify::Descale::kTensor, q);
        c.output_dtype = out;
        expect_decodes(c);
        c.layout = TILEWISE_BHSD;
        c.value_dim = 80;
        c.descale = verify::Descale::kAbsent;
        expect_decodes(c);
      }
    }
  }
}

// Rows of Q that fp16 cannot hold, and numbers of one row that are far apart.
TEST(Device, DecodeFp8ScalesRowsOfQueries) {
  if (!decodes_fp8()) GTEST_SKIP() << "no device since Hopper";
  for (const std::int32_t q_dtype : {TILEWISE_BF16, TILEWISE_FP32}) {
    for (const float size : {1e-28f, 1e-9f, 1.0f, 1e8f, 1e30f}) {
      Case c = decode_case(TILEWISE_E4M3, {1, 3, 200, 2, 1, 64}, verify::Descale::kHeads, q_dtype);
      c.scale = 0.125 / size;
      expect_decodes(c, [&](const tilewise_problem& request) {
        verify::for_each_element(request.q, [&](std::int64_t i, std::int64_t offset) {
          const double x = verify::read_element(request.q, offset);
          verify::write_element(request.q, offset, x * size * (i % 7 == 0 ? 1e-5 : 1));
        });
      });
    }
  }
}

TEST(Device, DecodeFp8ReadsPages) {
  if (!decodes_fp8()) GTEST_SKIP() << "no device since Hopper";
  for (const std::int64_t dim : {64, 128, 256}) {
    for (const std::int64_t page_size : {7, 16, 64, 256}) {
      const std::int64_t keys = page_size == 7 ? 770 : 768;
      const bool few = page_size < 64;
      Case c = decode_case(few ? TILEWISE_E4M3 : TILEWISE_E5M2, {3, few ? 1 : 9, keys, 8, 2, dim},
                           kScalesOfBlocks);
      c.used = {keys, 0, 577};
      c.page_size = page_size;
      expect_decodes(c);
      c.batch_invariant = c.causal = true;
      expect_decodes(c);
    }
  }
}

// Scales of 128 keys: tiles lie within a block, or in two where packed sequences begin within one.
TEST(Device, DecodeFp8TakesScalesOfBlocks) {
  if (!decodes_fp8()) GTEST_SKIP() << "no device since Hopper";
  for (const std::int64_t dim : {64, 128, 256}) {
    Case dense = decode_case(TILEWISE_E4M3, {2, 5, 900, 4, 2, dim}, kScalesOfBlocks, TILEWISE_E4M3);
    dense.output_dtype = TILEWISE_FP32;
    expect_decodes(dense);
    dense.causal = dense.sink = true;
    dense.window_left = 300;
    dense.used = {900, 131};
    dense.scale = -0.1;
    expect_decodes(dense);
    for (const std::int64_t most : {1, 10}) {
      Case packed =
          decode_case(TILEWISE_E5M2, {4, 0, 0, 4, 1, dim}, kScalesOfBlocks, TILEWISE_E5M2);
      packed.q_packed = packed.k_packed = packed.causal = true;
      packed.q_lengths = {most, 0, most, 1};
      packed.k_lengths = {200, 30, 280, 377};
      packed.unowned = 5;
      expect_decodes(packed);
      packed.q_dtype = TILEWISE_FP16;
      packed.output_dtype = TILEWISE_FP32;
      packed.causal = false;
      expect_decodes(packed);
    }
  }
}

// Scales of values that are far apart: out is in units of the largest one so far.
TEST(Device, DecodeFp8TakesScalesOfAnySize) {
  if (!decodes_fp8()) GTEST_SKIP() << "no device since Hopper";
  const float scales[][3] = {
      {1e-30f, 1, 1e30f}, {1e30f, 1, 1e-30f}, {1e-36f, 1e-36f, 1e-36f}, {1e33f, 1e-33f, 1e33f}};
  for (const auto& values : scales) {
    Case c = decode_case(TILEWISE_E4M3, {1, 2, 384, 1, 1, 64}, kScalesOfBlocks);
    c.output_dtype = TILEWISE_FP32;
    expect_decodes(c, [&](const tilewise_problem& request) {
      for (std::int64_t block = 0; block < 3; ++block)
        verify::write_element(request.v_descale, block, values[block]);
    });
  }
}

TEST(Device, DecodeFp8TakesOptionsOfTheScore) {
  if (!decodes_fp8()) GTEST_SKIP() << "no device since Hopper";
  for (const std::int32_t dtype : kFp8Dtypes) {
    Case c = decode_case(dtype, {2, 6, 500, 4, 2, 128}, kScalesOfBlocks, TILEWISE_FP16);
    c.softcap = 5;
    expect_decodes(c);
    c.softcap = 0;
    c.alibi = c.causal = true;
    expect_decodes(c);
    c.mask = {true, 4, {true, true, true, true}};
    expect_decodes(c);
    c.bias = {true, 4, {false, true, true, true}};
    c.bias_masks = true;
    c.window_left = 200;
    expect_decodes(c);
    Case phi = decode_case(dtype, {1, 1, 500, 2, 2, 64});
    phi.phi = {1.0};  // which fp8 does without
    expect_decodes(phi);
    for (const double scale : {0.0, -0.2, 1e-20, 40.0}) {
      Case scaled = decode_case(dtype, {1, 3, 300, 2, 1, 64});
      scaled.scale = scale;
      expect_decodes(scaled);
    }
  }
}

// Calls on parts of the keys, each of which adds to the results of those before.
TEST(Device, DecodeFp8AddsParts) {
  if (!decodes_fp8()) GTEST_SKIP() << "no device since Hopper";
  for (const std::int32_t dtype : kFp8Dtypes) {
    Case c = decode_case(dtype, {2, 3, 500, 4, 2, 64});
    c.output_dtype = TILEWISE_FP32;
    c.k_cuts = {130, 300};
    c.causal = c.sink = true;
    expect_decodes(c);
  }
}

TEST(Device, DecodeFp8IsAccurateOnAnyData) {
  if (!decodes_fp8()) GTEST_SKIP() << "no device since Hopper";
  for (const verify::Data& data : data_of_fp8()) {
    for (const bool causal : {false, true}) {
      Case c = decode_case(causal ? TILEWISE_E5M2 : TILEWISE_E4M3, {1, 12, 600, 2, 1, 64},
                           verify::Descale::kAbsent, causal ? TILEWISE_BF16 : TILEWISE_FP32);
      c.causal = causal;
      c.distribution = data;
      expect_decodes(c);
    }
  }
}

// Elements of V that are not finite reach the rows that see them, in their column. All other
// numbers keep the bits that they have without them.
TEST(Device, DecodeFp8KeepsBitsNextToNonFiniteValues) {
  if (!decodes_fp8()) GTEST_SKIP() << "no device since Hopper";
  constexpr std::int64_t kRows = 30;
  constexpr std::int64_t kKeys = 300;
  for (const std::int64_t dim : {64, 128, 256}) {
    for (const std::int32_t dtype : kFp8Dtypes) {
      Case c = decode_case(dtype, {1, kRows, kKeys, 1, 1, dim}, kScalesOfBlocks);
      c.causal = true;
      Instance clean(c);
      Instance poisoned(c);
      std::vector<std::int64_t> keys;  // the last ones, which some rows see and some do not
      for (std::int64_t key = kKeys - kRows + 2; key < kKeys; key += 5) {
        keys.push_back(key);
        const tilewise_tensor& v = poisoned.request().v;
        code_at(v, key * v.strides[1] + key % dim) = poison_code(dtype, key);
      }
      run_for_bits("cuda_decode", clean);
      run_for_bits("cuda_decode", poisoned);
      expect_poison_where(clean, poisoned, [&](std::int64_t row, std::int64_t column) {
        return std::any_of(keys.begin(), keys.end(), [&](std::int64_t key) {
          return key % dim == column && key <= row + kKeys - kRows;
        });
      });
      if (HasFatalFailure()) return;
    }
  }
}

// What lies after the keys in use affects nothing, in rows and in pages, and neither do the scales
// of blocks without a key in use.
TEST(Device, DecodeFp8IgnoresKeysAfterTheEnd) {
  if (!decodes_fp8()) GTEST_SKIP() << "no device since Hopper";
  for (const std::int32_t dtype : kFp8Dtypes) {
    for (const std::int64_t rows : {1, 30, 50}) {
      Case c = decode_case(dtype, {2, rows, 384, 1, 1, 128}, kScalesOfBlocks);
      c.used = {200, 0};
      Instance clean(c);
      Instance poisoned(c);
      const tilewise_problem& request = poisoned.request();
      for (const tilewise_tensor& tensor : {request.k, request.v}) {
        for (std::int64_t b = 0; b < 2; ++b)
          poison_rows(tensor, b, c.used[static_cast<std::size_t>(b)]);
      }
      for (const tilewise_tensor& scales : {request.k_descale, request.v_descale})
        verify::write_element(scales, 2 * scales.strides[2],
                              std::numeric_limits<float>::quiet_NaN());
      EXPECT_EQ(run_for_bits("cuda_decode", clean), run_for_bits("cuda_decode", poisoned));
    }
  }
}

// Tiles after the end of a packed sequence lie in blocks of others, whose scales affect nothing.
TEST(Device, DecodeFp8IgnoresScalesOfOtherSequences) {
  if (!decodes_fp8()) GTEST_SKIP() << "no device since Hopper";
  for (const std::int64_t dim : {64, 128, 256}) {
    Case c = decode_case(TILEWISE_E4M3, {3, 0, 0, 1, 1, dim}, kScalesOfBlocks);
    c.q_packed = c.k_packed = true;
    c.q_lengths = {1, 1, 1};
    c.k_lengths = {200, 10, 190};  // of which only the last one has keys in blocks 2 and 3
    Instance clean(c);
    Instance poisoned(c);
    const tilewise_problem& request = poisoned.request();
    for (const tilewise_tensor& scales : {request.k_descale, request.v_descale}) {
      for (const std::int64_t block : {2, 3})
        verify::write_element(scales, block, std::numeric_limits<float>::quiet_NaN());
    }
    run_for_bits("cuda_decode", clean);
    run_for_bits("cuda_decode", poisoned);
    const std::vector<double> expected = verify::numbers_of(clean.request().out);
    const std::vector<double> out = verify::numbers_of(request.out);
    for (std::size_t i = 0; i < static_cast<std::size_t>(2 * dim); ++i)
      ASSERT_EQ(out[i], expected[i]) << i;
  }
}

TEST(Device, DecodeFp8NamesTheOptionsThatItRefuses) {
  if (!decodes_fp8()) GTEST_SKIP() << "no device since Hopper";
  const auto message = [](const Case& c) { return refusal(c, "cuda_decode"); };
  Case c = decode_case(TILEWISE_E4M3, {1, 1, 130, 1, 1, 40}, verify::Descale::kAbsent);
  EXPECT_NE(message(c).find("no multiple of 16 bytes"), std::string::npos);
  c.head_dim = c.value_dim = 272;
  EXPECT_NE(message(c).find("must be at most 256"), std::string::npos);
  c.head_dim = c.value_dim = 64;
  c.dropout_p = 0.1;
  EXPECT_NE(message(c).find("dropout"), std::string::npos);
}

// Queries of 16 bits on a cache of fp8 have no other fast kernel, whatever their number.
TEST(Device, DecodeFp8IsChosenWhereItIsTheOnlyKernel) {
  if (!decodes_fp8()) GTEST_SKIP() << "no device since Hopper";
  for (const std::int64_t queries : {1, 2000}) {
    plan::Plan plan;
    const Case c =
        decode_case(TILEWISE_E4M3, {1, queries, 2000, 8, 8, 128}, verify::Descale::kAbsent);
    ASSERT_EQ(plan_on_cuda(c, nullptr, &plan), TILEWISE_OK) << problem::message();
    EXPECT_STREQ(plan.kernel->name, "cuda_decode");
  }
}

}  // namespace
}  // namespace tilewise::tests
