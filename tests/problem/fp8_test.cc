// What validation refuses of fp8.
#include <gtest/gtest.h>

#include <cmath>

#include "problem/sample.h"

namespace tilewise::tests {
namespace {

// Makes q, k and v of the sample e4m3.
void quantise(Sample& sample) {
  tilewise_problem& p = sample.request;
  p.q.dtype = p.k.dtype = p.v.dtype = TILEWISE_E4M3;
}

// Adds k_descale (B, Hk), all 1 but the last.
void scale_keys(Sample& sample, float last) {
  quantise(sample);
  sample.request.k_descale = sample.tensor(TILEWISE_FP32, {kB, kHk});
  float* const scales = static_cast<float*>(sample.request.k_descale.data);
  scales[0] = scales[1] = scales[2] = 1;
  scales[3] = last;
}

const Fault kFp8Faults[] = {
    {"backward",
     kBackward,
     ALTER(quantise(sample); p.dout.dtype = TILEWISE_BF16),
     {"k: dtype is e4m3", "backward takes fp64"},
     TILEWISE_UNSUPPORTED},
    {"v_of_the_other_format",
     kForward,
     ALTER(quantise(sample); p.v.dtype = TILEWISE_E5M2),
     {"v", "dtype is e5m2", "e4m3"}},
    {"q_of_the_other_format",
     kForward,
     ALTER(quantise(sample); p.q.dtype = TILEWISE_E5M2),
     {"q", "dtype is e5m2", "e4m3 as k, or bf16, fp16 or fp32"}},
    {"q_of_fp64",
     kForward,
     ALTER(quantise(sample); p.q.dtype = TILEWISE_FP64),
     {"q", "dtype is fp64", "bf16, fp16 or fp32"}},
    {"q_alone", kForward, ALTER(p.q.dtype = TILEWISE_E4M3), {"k", "dtype is fp32", "must be e4m3"}},
    {"out_of_fp8",
     kForward,
     ALTER(quantise(sample); p.out.dtype = TILEWISE_E4M3),
     {"out", "dtype is e4m3", "bf16, fp16 or fp32"}},
    {"bias_of_fp8",
     kForward,
     ALTER(quantise(sample); p.bias.dtype = TILEWISE_E4M3),
     {"bias", "dtype is e4m3", "bf16, fp16 or fp32"}},
    {"descale_of_wide_q",
     kForward,
     ALTER(quantise(sample); p.q.dtype = TILEWISE_FP32;
           p.q_descale = sample.tensor(TILEWISE_FP32, {1})),
     {"q_descale", "a tensor of fp32", "e4m3 or e5m2"}},
    {"descale_dtype",
     kForward,
     ALTER(quantise(sample); p.v_descale = sample.tensor(TILEWISE_BF16, {1})),
     {"v_descale", "dtype is bf16", "fp32"}},
    {"descale_of_query_heads",
     kForward,
     ALTER(quantise(sample); p.q_descale = sample.tensor(TILEWISE_FP32, {kB, kH})),
     {"q_descale", "shape is (2, 4)", "(B, Hk) = (2, 2)"}},
    {"descale_of_two",
     kForward,
     ALTER(quantise(sample); p.k_descale = sample.tensor(TILEWISE_FP32, {2})),
     {"k_descale", "shape is (2)", "(1)"}},
    {"descale_of_two_blocks",
     kForward,
     ALTER(quantise(sample); p.k_descale = sample.tensor(TILEWISE_FP32, {kB, kHk, 2})),
     {"k_descale", "shape is (2, 2, 2)", "(2, 2, 1)"}},
    {"descale_of_packed_blocks",
     kForward,
     ALTER(sample.pack(); quantise(sample);
           p.k_descale = sample.tensor(TILEWISE_FP32, {kB, kHk, 1})),
     {"k_descale", "shape is (2, 2, 1)", "(1, 2, 1)"}},
    {"descale_zero", kForward, ALTER(scale_keys(sample, 0)), {"k_descale[1][1][0]", "is 0"}},
    {"descale_negative", kForward, ALTER(scale_keys(sample, -2)), {"k_descale[1][1][0]", "is -2"}},
    {"descale_nan", kForward, ALTER(scale_keys(sample, NAN)), {"k_descale[1][1][0]", "nan"}},
    {"descale_infinite",
     kForward,
     ALTER(scale_keys(sample, INFINITY)),
     {"k_descale[1][1][0]", "is inf", "positive and finite"}},
};

TEST(Fp8Validation, FaultsNameArgumentValueAndLimit) {
  for (const Fault& fault : kFp8Faults) {
    SCOPED_TRACE(fault.name);
    expect_fault(fault);
  }
}

TEST(Fp8Validation, QueriesMayBeWider) {
  for (const std::int32_t dtype : {TILEWISE_E4M3, TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16}) {
    for (const std::int32_t out : {TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16}) {
      Sample sample;
      scale_keys(sample, 2);
      sample.request.q.dtype = dtype;
      sample.request.out.dtype = out;
      EXPECT_EQ(run(kForward, sample.request), TILEWISE_OK) << tilewise_last_error();
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
