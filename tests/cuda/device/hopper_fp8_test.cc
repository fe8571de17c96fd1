// fp8 on the Hopper kernel (cuda_sm90): the accuracy rule with probs of e4m3, every code, scales,
// and numbers that are not finite beside a mask.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/device/fp8_support.h"

namespace tilewise::tests {
namespace {

Case fp8_case(std::int32_t dtype, const std::vector<std::int64_t>& sizes,
              verify::Descale descale = verify::Descale::kHeads) {
  Case c = make_case(Operation::kForward, dtype, sizes);
  c.descale = descale;
  return c;
}

void expect_computes(const Case& c) { expect_passes("cuda_sm90", c); }

TEST(Device, HopperFp8CoversItsHeadDimensions) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const std::int32_t dtype : kFp8Dtypes) {
    for (const std::int64_t dim : {16, 48, 64, 80, 128}) {
      Case c = fp8_case(dtype, {2, 70, 200, 2, 1, dim});
      for (const bool causal : {false, true}) {
        c.causal = c.sink = causal;
        c.output_dtype = causal ? TILEWISE_FP16 : TILEWISE_BF16;
        c.used = causal ? std::vector<std::int64_t>{200, 77} : std::vector<std::int64_t>{};
        expect_computes(c);
      }
    }
  }
}

// Several tiles of queries for each multiprocessor of a small device, and more tiles of keys than
// stages: lengths that are no multiples of a tile, packed sequences, windows, both alignments.
TEST(Device, HopperFp8ComputesManyTiles) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  expect_computes(fp8_case(TILEWISE_E4M3, {1, 300, 700, 4, 2, 64}));
  expect_computes(fp8_case(TILEWISE_E4M3, {1, 128, 1024, 2, 1, 128}, verify::Descale::kTensor));
  Case c = fp8_case(TILEWISE_E4M3, {1, 600, 400, 2, 1, 128});
  c.causal = true;
  expect_computes(c);
  c.alignment = TILEWISE_TOP_LEFT;
  c.dtype = TILEWISE_E5M2;
  expect_computes(c);
  c.causal = false;
  c.window_left = 130;
  c.window_right = 20;
  c.layout = TILEWISE_BHSD;
  expect_computes(c);
  for (const bool causal : {false, true}) {
    Case packed = fp8_case(causal ? TILEWISE_E5M2 : TILEWISE_E4M3, {3, 0, 0, 4, 2, 96});
    packed.value_dim = 48;
    packed.q_packed = packed.k_packed = true;
    packed.q_lengths = {150, 0, 290};
    packed.k_lengths = {290, 30, 170};
    packed.unowned = 5;
    packed.causal = causal;
    packed.sink = causal;
    expect_computes(packed);
  }
  Case many = fp8_case(TILEWISE_E4M3, {30, 0, 0, 2, 1, 64});  // more than a block lists itself
  many.q_packed = many.k_packed = true;
  for (std::int64_t b = 0; b < 30; ++b) {
    many.q_lengths.push_back(b % 5 * 9);
    many.k_lengths.push_back(b % 7 * 11);
  }
  expect_computes(many);
  Case used = fp8_case(TILEWISE_E5M2, {2, 140, 300, 2, 2, 64});
  used.used = {257, 0};
  used.used_q = {99, 140};
  expect_computes(used);
}

TEST(Device, HopperFp8StoresEveryTypeAndAlignment) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const std::int32_t out : {TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16}) {
    Case c = fp8_case(TILEWISE_E4M3, {1, 140, 200, 2, 1, 128}, verify::Descale::kAbsent);
    c.output_dtype = out;
    expect_computes(c);
    c.value_dim = 48;
    c.lse = false;
    expect_computes(c);
  }
}

// Scales of 128 rows: dense tensors, whose tiles of keys lie within a block, and packed ones, whose
// tiles lie in two.
TEST(Device, HopperFp8TakesScalesOfBlocks) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  constexpr verify::Descale kBlocks = verify::Descale::kBlocks;
  Case dense = fp8_case(TILEWISE_E4M3, {2, 140, 300, 2, 1, 128}, kBlocks);
  expect_computes(dense);
  dense.causal = dense.sink = true;
  dense.used = {300, 131};
  dense.scale = -0.1;
  expect_computes(dense);
  for (const std::int64_t dim : {64, 128}) {
    Case packed = fp8_case(TILEWISE_E5M2, {4, 0, 0, 2, 1, dim}, kBlocks);
    packed.q_packed = packed.k_packed = packed.causal = true;
    packed.q_lengths = {100, 0, 150, 1};
    packed.k_lengths = {200, 30, 280, 77};
    packed.unowned = 5;
    expect_computes(packed);
    packed.causal = false;
    packed.dtype = TILEWISE_E4M3;
    packed.output_dtype = TILEWISE_FP32;
    expect_computes(packed);
  }
  for (const verify::Distribution poison :
       {verify::Distribution::kNanV, verify::Distribution::kNanK, verify::Distribution::kInfV}) {
    Case c = fp8_case(TILEWISE_E5M2, {1, 200, 300, 1, 1, 128}, kBlocks);
    c.causal = true;
    c.distribution = poison;
    expect_computes(c);
  }
}

// Softcap and ALiBi act on scores with their scales.
TEST(Device, HopperFp8TakesSoftcapAndAlibi) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const std::int64_t dim : {64, 128}) {
    Case c = fp8_case(TILEWISE_E4M3, {1, 140, 300, 2, 1, dim});
    c.softcap = 5;
    expect_computes(c);
    c.softcap = 0.01;  // too small for the short form
    c.alibi = c.causal = true;
    expect_computes(c);
    c.dtype = TILEWISE_E5M2;
    c.descale = verify::Descale::kBlocks;
    c.softcap = 0;
    c.scale = -0.3;
    expect_computes(c);
  }
}

// Scales that are not positive cannot be a factor of exponents.
TEST(Device, HopperFp8TakesAnyScale) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const double scale : {0.0, -0.2, 1e-20, 3.0, 40.0}) {
    Case c = fp8_case(TILEWISE_E4M3, {1, 140, 300, 2, 1, 64});
    c.scale = scale;
    c.causal = scale < 0;
    expect_computes(c);
  }
}

TEST(Device, HopperFp8IsAccurateOnAnyData) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const verify::Data& data : data_of_fp8()) {
    for (const bool causal : {false, true}) {
      Case c = fp8_case(causal ? TILEWISE_E5M2 : TILEWISE_E4M3, {1, 150, 400, 1, 1, 64},
                        verify::Descale::kAbsent);
      if (causal) c.head_dim = c.value_dim = 128;
      c.causal = causal;
      c.distribution = data;
      expect_computes(c);
    }
  }
}

// Elements of V that are not finite reach the rows that see them, in their column; NaN in K reaches
// the rows that see the key. All other numbers keep the bits that they have without them, also
// beside such rows and in cut key tiles.
TEST(Device, HopperFp8KeepsBitsNextToNonFiniteNumbers) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  const struct {
    std::int64_t rows, dim, value_dim, window;
    bool in_keys;
  } shapes[] = {{300, 64, 64, -1, false},   {500, 64, 64, 200, false}, {300, 128, 128, -1, false},
                {400, 128, 96, 127, false}, {300, 64, 128, -1, true},  {300, 128, 64, 90, true}};
  for (const auto& shape : shapes) {
    for (const std::int32_t dtype : kFp8Dtypes) {
      Case c = fp8_case(dtype, {1, shape.rows, shape.rows, 1, 1, shape.dim});
      c.value_dim = shape.value_dim;
      c.causal = true;
      c.window_left = shape.window;
      Instance clean(c);
      Instance poisoned(c);
      std::vector<std::int64_t> keys;
      for (std::int64_t key = 3; key < shape.rows; key += shape.in_keys ? 140 : 61) {
        keys.push_back(key);
        const tilewise_tensor& to = shape.in_keys ? poisoned.request().k : poisoned.request().v;
        code_at(to, key * to.strides[1] + key % to.shape[3]) =
            poison_code(dtype, shape.in_keys ? 0 : key);
      }
      run_for_bits("cuda_sm90", clean);
      run_for_bits("cuda_sm90", poisoned);
      const auto sees = [&](std::int64_t row, std::int64_t column) {
        return std::any_of(keys.begin(), keys.end(), [&](std::int64_t key) {
          return (shape.in_keys || key % shape.value_dim == column) && key <= row &&
                 (shape.window < 0 || key >= row - shape.window);
        });
      };
      expect_poison_where(clean, poisoned, sees);
      if (HasFatalFailure()) return;
      const std::vector<double> expected_lse = verify::numbers_of(clean.request().lse);
      const std::vector<double> lse = verify::numbers_of(poisoned.request().lse);
      for (std::size_t row = 0; row < lse.size(); ++row) {
        const bool is_nan = shape.in_keys && sees(static_cast<std::int64_t>(row), 0);
        ASSERT_TRUE(is_nan ? std::isnan(lse[row]) : lse[row] == expected_lse[row])
            << "row " << row << ": " << describe(c);
      }
    }
  }
}

// What lies after the keys in use, and what belongs to other sequences, affects nothing.
TEST(Device, HopperFp8IgnoresKeysAfterTheEnd) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const std::int32_t dtype : kFp8Dtypes) {
    Case c = fp8_case(dtype, {2, 130, 300, 1, 1, 64});
    c.used = {200, 0};
    Instance clean(c);
    Instance poisoned(c);
    for (const tilewise_tensor& tensor : {poisoned.request().k, poisoned.request().v}) {
      for (std::int64_t b = 0; b < 2; ++b)
        poison_rows(tensor, b, c.used[static_cast<std::size_t>(b)]);
    }
    EXPECT_EQ(run_for_bits("cuda_sm90", clean), run_for_bits("cuda_sm90", poisoned));
  }
}

// As in registry/fp8_test.cc, with head dimensions that the kernel takes.
constexpr float kScale = 0.3f;

void run_scaled(Instance& instance) {
  const tilewise_problem& request = instance.request();
  for (const auto member :
       {&tilewise_problem::q_descale, &tilewise_problem::k_descale, &tilewise_problem::v_descale})
    verify::write_element(request.*member, 0, kScale);
  run_for_bits("cuda_sm90", instance);
}

Case code_case(std::int32_t dtype, std::int64_t queries, std::int64_t heads, std::int64_t dim,
               std::int64_t value_dim) {
  Case c = fp8_case(dtype, {1, queries, 1, heads, heads, dim}, verify::Descale::kTensor);
  c.value_dim = value_dim;
  c.output_dtype = TILEWISE_FP32;
  c.scale = 1;
  return c;
}

void clear_codes(const tilewise_tensor& tensor) {
  verify::for_each_element(tensor,
                           [&](std::int64_t, std::int64_t offset) { code_at(tensor, offset) = 0; });
}
bool is_finite_code(std::int32_t dtype, int code) {
  return dtype == TILEWISE_E4M3 ? (code & 0x7f) != 0x7f : (code & 0x7c) != 0x7c;
}

TEST(Device, HopperFp8ReadsEveryCodeOfAValue) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const std::int32_t dtype : kFp8Dtypes) {
    Instance instance(code_case(dtype, 70, 2, 16, 128));
    clear_codes(instance.request().k);
    for (int code = 0; code < 256; ++code)
      code_at(instance.request().v, code) = static_cast<std::uint8_t>(code);
    run_scaled(instance);
    const auto* const out = static_cast<const float*>(instance.request().out.data);
    for (std::int64_t at = 0; at < 70 * 256; ++at) {
      const float stored = static_cast<float>(verify::read_element(instance.request().v, at % 256));
      const float expected = stored * kScale;
      ASSERT_TRUE(std::isnan(expected) ? std::isnan(out[at]) : out[at] == expected)
          << at << ": " << out[at] << ", not " << expected;
    }
  }
}

TEST(Device, HopperFp8ReadsEveryFiniteCodeOfAKeyAndAQuery) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const std::int32_t dtype : kFp8Dtypes) {
    for (const bool of_keys : {true, false}) {
      Instance instance(code_case(dtype, 128, 2, 128, 16));
      const tilewise_problem& request = instance.request();
      clear_codes(request.q);
      clear_codes(request.k);
      for (int code = 0; code < 256; ++code) {
        const int head = code / 128;
        const int row = code % 128;
        const std::int64_t of_q = row * request.q.strides[1] + head * request.q.strides[2];
        const std::uint8_t bits = is_finite_code(dtype, code) ? static_cast<std::uint8_t>(code) : 0;
        const tilewise_tensor& k = request.k;
        if (of_keys) {  // row r of queries is the unit vector of column r
          verify::write_element(request.q, of_q + row, 1);
          code_at(k, head * k.strides[2] + row) = bits;
        } else {
          code_at(request.q, of_q + 77) = bits;
          verify::write_element(k, head * k.strides[2] + 77, 1);
        }
      }
      run_scaled(instance);
      for (int code = 0; code < 256; ++code) {
        const std::int64_t of_q =
            code % 128 * request.q.strides[1] + code / 128 * request.q.strides[2];
        const double stored = of_keys ? verify::read_element(request.k, code)
                                      : verify::read_element(request.q, of_q + 77);
        const double expected = stored * 0.3 * 0.3;
        ASSERT_NEAR(static_cast<const float*>(request.lse.data)[code], expected,
                    1e-6 * std::max(1.0, std::abs(expected)))
            << code;
      }
    }
  }
}

// Other kernels of the device refuse fp8, and this one what it leaves out, by name.
TEST(Device, HopperFp8NamesTheOptionsThatItRefuses) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  const Case plain = fp8_case(TILEWISE_E4M3, {1, 130, 130, 1, 1, 64}, verify::Descale::kAbsent);
  for (const char* const kernel : {"cuda_sm80", "cuda_fp32", "cuda_flash1", "cuda_standard"})
    EXPECT_NE(refusal(plain, kernel), "") << kernel;
  Case c = plain;
  c.q_dtype = TILEWISE_BF16;
  EXPECT_NE(refusal(c, "cuda_sm90").find("q is not of fp8"), std::string::npos);
  c = plain;
  c.head_dim = 40;
  EXPECT_NE(refusal(c, "cuda_sm90").find("multiples of 16 up to 128"), std::string::npos);
  c = plain;
  c.dropout_p = 0.1;
  EXPECT_NE(refusal(c, "cuda_sm90").find("dropout_p is given"), std::string::npos);
}

}  // namespace
}  // namespace tilewise::tests
