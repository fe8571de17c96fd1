// Every error of validation gives a status and one line that names argument, value and limit, and
// leaves the outputs untouched. The tests use the public functions, forward or backward.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "problem/sample.h"

namespace tilewise::tests {
namespace {

const Fault kFaults[] = {
    // options
    {"layout", kForward, ALTER(p.layout = 2), {"layout", "is 2", "0 (BSHD) or 1 (BHSD)"}},
    {"alignment", kForward, ALTER(p.alignment = -1), {"alignment", "is -1", "0 (bottom-right)"}},
    {"causal", kForward, ALTER(p.causal = 7), {"causal", "is 7", "0 or 1"}},
    {"deterministic", kForward, ALTER(p.deterministic = 2), {"deterministic", "is 2", "0 or 1"}},
    {"batch_invariant",
     kForward,
     ALTER(p.batch_invariant = -1),
     {"batch_invariant", "is -1", "0 or 1"}},
    {"reserved", kForward, ALTER(p.reserved = 9), {"reserved", "is 9", "0"}},
    {"window_left", kForward, ALTER(p.window_left = -2), {"window_left", "is -2", ">= -1"}},
    {"window_right",
     kForward,
     ALTER(p.window_right = INT64_MIN),
     {"window_right", "is -9223372036854775808", ">= -1"}},
    {"softcap_negative", kForward, ALTER(p.softcap = -1.5), {"softcap", "is -1.5", ">= 0"}},
    {"softcap_infinite", kForward, ALTER(p.softcap = HUGE_VAL), {"softcap", "is inf", "finite"}},
    {"softcap_nan", kForward, ALTER(p.softcap = std::nan("")), {"softcap", "nan", "finite"}},
    {"dropout_one", kForward, ALTER(p.dropout_p = 1), {"dropout_p", "is 1", ">= 0 and < 1"}},
    {"dropout_negative", kForward, ALTER(p.dropout_p = -0.1), {"dropout_p", "is -0.1", ">= 0"}},
    {"dropout_nan", kForward, ALTER(p.dropout_p = std::nan("")), {"dropout_p", "nan", ">= 0"}},
    {"dropout_offset",
     kForward,
     ALTER(p.dropout_offset = std::uint64_t{1} << 32),
     {"dropout_offset", "is 4294967296", "< 2^32"}},
    {"scale_nan",
     kForward,
     ALTER(p.softmax_scale = std::nan("")),
     {"softmax_scale", "nan", "finite"}},
    {"scale_minus_infinity",
     kForward,
     ALTER(p.softmax_scale = -HUGE_VAL),
     {"softmax_scale", "-inf", "finite"}},
    // single tensors
    {"rank_negative", kForward, ALTER(p.mask.rank = -1), {"mask", "rank is -1", "0 (absent) to 4"}},
    {"rank_five", kForward, ALTER(p.q.rank = 5), {"q", "rank is 5", "0 (absent) to 4"}},
    {"dtype_unknown", kForward, ALTER(p.bias.dtype = 99), {"bias", "dtype is 99", "no dtype"}},
    {"device_cuda",
     kForward,
     ALTER(p.k.device = TILEWISE_CUDA),
     {"k", "device is cuda:0", "that of q: cpu"}},
    {"device_index_negative",
     kForward,
     ALTER(p.q.device = TILEWISE_CUDA; p.q.device_index = -1),
     {"q", "device is 1:-1", "1:n (cuda)"}},
    {"device_unknown", kForward, ALTER(p.k.device = 5), {"k", "device is 5:0", "0:0 (cpu)"}},
    {"device_index", kForward, ALTER(p.v.device_index = 1), {"v", "device is 0:1", "0:0"}},
    {"shape_negative", kForward, ALTER(p.v.shape[1] = -4), {"v", "shape[1] is -4", ">= 0"}},
    {"reach_overflow",
     kForward,
     ALTER(p.q.strides[0] = INT64_MAX / 2),
     {"q", "(2, 3, 4, 8)", "2^61"}},
    {"reach_minimum", kForward, ALTER(p.q.strides[0] = INT64_MIN), {"q", "(2, 3, 4, 8)", "2^61"}},
    {"shape_overflow",
     kForward,
     ALTER(p.mask.shape[2] = INT64_MAX; p.mask.strides[2] = 1 << 20),
     {"mask", "2^61"}},
    // q, k, v
    {"q_missing", kForward, ALTER(p.q.rank = 0), {"q", "rank is 0", "4 (dense) or 3 (packed"}},
    {"k_rank", kForward, ALTER(p.k.rank = 2), {"k", "rank is 2", "4 (dense)"}},
    {"q_integer",
     kForward,
     ALTER(p.q.dtype = TILEWISE_INT32),
     {"q", "int32", "fp64, fp32, bf16, fp16, e4m3 or e5m2"}},
    {"v_other_dtype", kForward, ALTER(p.v.dtype = TILEWISE_BF16), {"v", "bf16", "fp32"}},
    {"k_innermost", kForward, ALTER(p.k.strides[3] = 2), {"k", "innermost stride is 2", "1"}},
    {"q_innermost_zero", kForward, ALTER(p.q.strides[3] = 0), {"q", "innermost stride is 0", "1"}},
    {"v_not_like_k", kForward, ALTER(p.v.shape[1] = 4), {"v", "(2, 4, 2, 6)", "(2, 5, 2, 8)"}},
    {"v_heads", kForward, ALTER(p.v.shape[2] = 1), {"v", "(2, 5, 1, 6)", "(2, 5, 2, 8)"}},
    {"v_batch", kForward, ALTER(p.v.shape[0] = 1), {"v", "(1, 5, 2, 6)", "(2, 5, 2, 8)"}},
    {"k_head_dim", kForward, ALTER(p.k.shape[3] = 7), {"k", "head dimension is 7", "8"}},
    {"no_head_dim", kForward, ALTER(p.q.shape[3] = p.k.shape[3] = 0), {"q", "D is 0", ">= 1"}},
    {"no_value_dim", kForward, ALTER(p.v.shape[3] = 0), {"v", "Dv is 0", ">= 1"}},
    {"heads_not_multiple",
     kForward,
     ALTER(p.k.shape[2] = p.v.shape[2] = 3),
     {"q", "4 heads", "multiple of k's 3"}},
    {"heads_without_kv",
     kForward,
     ALTER(p.k.shape[2] = p.v.shape[2] = 0),
     {"q", "4 heads", "multiple of k's 0"}},
    {"batch_differs", kForward, ALTER(p.k.shape[0] = p.v.shape[0] = 1), {"k", "batch is 1", "2"}},
    {"too_many_rows",
     kForward,
     ALTER(p.q.shape[1] = p.out.shape[1] = std::int64_t{1} << 58;
           p.q.strides[1] = p.out.strides[1] = p.q.strides[0] = p.out.strides[0] = 0;
           p.lse.rank = p.mask.rank = p.bias.rank = 0),
     {"q", "2^59"}},
    // outputs of forward, statistics
    {"out_missing", kForward, ALTER(p.out.rank = 0), {"out", "missing"}},
    {"out_dtype", kForward, ALTER(p.out.dtype = TILEWISE_FP16), {"out", "fp16", "fp32"}},
    {"out_shape", kForward, ALTER(p.out.shape[3] = 5), {"out", "(2, 3, 4, 5)", "(2, 3, 4, 6)"}},
    {"out_rank", kForward, ALTER(p.out.rank = 3), {"out", "rank is 3", "4"}},
    {"out_innermost", kForward, ALTER(p.out.strides[3] = 3), {"out", "innermost stride is 3", "1"}},
    {"lse_dtype", kForward, ALTER(p.lse.dtype = TILEWISE_FP64), {"lse", "fp64", "fp32"}},
    {"lse_shape",
     kForward,
     ALTER(p.lse.shape[1] = 2),
     {"lse", "(2, 2, 3)", "(B, H, Sq) = (2, 4, 3)"}},
    // score inputs
    {"mask_dtype", kForward, ALTER(p.mask.dtype = TILEWISE_INT32), {"mask", "int32", "bool"}},
    {"mask_shape", kForward, ALTER(p.mask.shape[3] = 4), {"mask", "(2, 1, 3, 4)", "(2, 4, 3, 5)"}},
    {"bias_dtype", kForward, ALTER(p.bias.dtype = TILEWISE_FP64), {"bias", "fp64", "fp32"}},
    {"bias_shape", kForward, ALTER(p.bias.shape[1] = 3), {"bias", "(1, 3, 3, 5)", "(2, 4, 3, 5)"}},
    {"slopes_dtype",
     kForward,
     ALTER(p.alibi_slopes.dtype = TILEWISE_BF16),
     {"alibi_slopes", "bf16", "fp32"}},
    {"slopes_shape",
     kForward,
     ALTER(p.alibi_slopes.shape[0] = 3),
     {"alibi_slopes", "(3)", "(H) = (4)"}},
    {"slopes_rank",
     kForward,
     ALTER(p.alibi_slopes = sample.tensor(TILEWISE_FP32, {1, kB, kH})),
     {"alibi_slopes", "rank is 3", "1"}},
    {"slopes_batch",
     kForward,
     ALTER(p.alibi_slopes = sample.tensor(TILEWISE_FP32, {3, kH})),
     {"alibi_slopes", "(3, 4)", "(B, H) = (2, 4)"}},
    {"sink_dtype", kForward, ALTER(p.sink.dtype = TILEWISE_FP64), {"sink", "fp64", "fp32"}},
    {"sink_shape", kForward, ALTER(p.sink.shape[0] = 8), {"sink", "(8)", "(H) = (4)"}},
    // packed
    {"cu_seqlens_missing",
     kForward,
     ALTER(sample.pack(); p.cu_seqlens_q.rank = 0),
     {"cu_seqlens_q", "missing", "packed (rank 3)"}},
    {"cu_seqlens_on_dense",
     kForward,
     ALTER(p.cu_seqlens_k = sample.numbers({0, 1, 2}, {3})),
     {"cu_seqlens_k", "dense tensor (rank 4)"}},
    {"cu_seqlens_rank",
     kForward,
     ALTER(sample.pack(); p.cu_seqlens_q.rank = 2),
     {"cu_seqlens_q", "rank is 2", "1"}},
    {"cu_seqlens_empty",
     kForward,
     ALTER(sample.pack(); p.cu_seqlens_q.shape[0] = 0),
     {"cu_seqlens_q", "empty", "B+1 >= 1"}},
    {"cu_seqlens_dtype",
     kForward,
     ALTER(sample.pack(); p.cu_seqlens_k.dtype = TILEWISE_FP64),
     {"cu_seqlens_k", "fp64", "int32 or int64"}},
    {"cu_seqlens_count",
     kForward,
     ALTER(sample.pack(); p.cu_seqlens_k.shape[0] = 2),
     {"cu_seqlens_k", "(2)", "(3)"}},
    {"max_seqlen",
     kForward,
     ALTER(sample.pack(); p.max_seqlen_q = -2),
     {"max_seqlen_q", "is -2", ">= 0"}},
    {"seqused_count",
     kForward,
     ALTER(p.seqused_k = sample.numbers({1, 2, 3}, {3})),
     {"seqused_k", "(3)", "(2)"}},
    {"seqused_q_count",
     kForward,
     ALTER(p.seqused_q = sample.numbers({1}, {1})),
     {"seqused_q", "(1)", "(2)"}},
    {"packed_out_shape",
     kForward,
     ALTER(sample.pack(); p.out.shape[0] = 2),
     {"out", "(2, 4, 6)", "(3, 4, 6)"}},
    {"packed_lse_shape",
     kForward,
     ALTER(sample.pack(); p.lse.shape[1] = 2),
     {"lse", "(4, 2)", "(H, T) = (4, 3)"}},
    // contents
    {"cu_seqlens_falls",
     kForward,
     ALTER(sample.pack(); p.cu_seqlens_q = sample.numbers({0, 2, 1}, {3})),
     {"cu_seqlens_q[2]", "is 1", "between 2", "T = 3"}},
    {"cu_seqlens_negative",
     kForward,
     ALTER(sample.pack(); p.cu_seqlens_q = sample.numbers({-1, 2, 3}, {3})),
     {"cu_seqlens_q[0]", "is -1", "between 0"}},
    {"cu_seqlens_beyond",
     kForward,
     ALTER(sample.pack(); p.cu_seqlens_k = sample.numbers({0, 2, 6}, {3})),
     {"cu_seqlens_k[2]", "is 6", "T = 5"}},
    {"longer_than_max",
     kForward,
     ALTER(sample.pack(); p.max_seqlen_q = 1),
     {"cu_seqlens_q[1]", "length 2", "max_seqlen = 1"}},
    {"seqused_beyond",
     kForward,
     ALTER(p.seqused_k = sample.numbers({1, 6}, {2})),
     {"seqused_k[1]", "is 6", "between 0 and 5"}},
    {"seqused_negative",
     kForward,
     ALTER(p.seqused_k = sample.numbers({-1, 5}, {2})),
     {"seqused_k[0]", "is -1", "between 0 and 5"}},
    {"seqused_q_beyond",
     kForward,
     ALTER(p.seqused_q = sample.numbers({3, 4}, {2})),
     {"seqused_q[1]", "is 4", "between 0 and 3"}},
    {"seqused_q_negative",
     kBackward,
     ALTER(p.seqused_q = sample.numbers({-2, 3}, {2})),
     {"seqused_q[0]", "is -2", "between 0 and 3"}},
    {"slice_rows",
     kForward,
     ALTER(p.slices = sample.numbers({0, 4, 0, 5, 0}, {1, 5})),
     {"slices[0]", "q0..q1 is 0..4", "0..3"}},
    {"slice_keys",
     kForward,
     ALTER(p.slices = sample.numbers({0, 3, 4, 2, 0}, {1, 5})),
     {"slices[0]", "k0..k1 is 4..2", "0..5"}},
    {"slice_kind",
     kForward,
     ALTER(p.slices = sample.numbers({0, 3, 0, 5, 4}, {1, 5})),
     {"slices[0]", "kind is 4", "0 to 3"}},
    {"slice_head",
     kForward,
     ALTER(p.slices = sample.numbers({0, 3, 0, 5, 0, 4}, {1, 6})),
     {"slices[0]", "head is 4", "H = 4"}},
    // slices
    {"slices_rank",
     kForward,
     ALTER(p.slices = sample.numbers({0, 3, 0, 5, 0}, {5})),
     {"slices", "rank is 1", "2"}},
    {"slices_dtype",
     kForward,
     ALTER(p.slices = sample.numbers({0, 3, 0, 5, 0}, {1, 5}); p.slices.dtype = TILEWISE_INT32),
     {"slices", "int32", "int64"}},
    {"slices_columns",
     kForward,
     ALTER(p.slices = sample.numbers({0, 3, 0, 5}, {1, 4})),
     {"slices", "4 columns", "5 or 6"}},
    {"slices_causal",
     kForward,
     ALTER(p.slices = sample.numbers({0, 3, 0, 5, 0}, {1, 5}); p.causal = 1),
     {"slices", "causal"}},
    {"slices_window",
     kForward,
     ALTER(p.slices = sample.numbers({0, 3, 0, 5, 0}, {1, 5}); p.window_left = 4),
     {"slices", "a window"}},
    {"slices_half_packed",
     kForward,
     ALTER(p.slices = sample.numbers({0, 3, 0, 5, 0}, {1, 5});
           p.q = sample.tensor(TILEWISE_FP32, {kSq, kH, kD})),
     {"slices", "q is packed and k is dense", "both dense or both packed"}},
    {"slices_cu_seqlens",
     kForward,
     ALTER(sample.pack(); p.slices = sample.numbers({0, 3, 0, 5, 0}, {1, 5});
           p.alibi_slopes.rank = 0),
     {"cu_seqlens_q", "slices"}},
    {"slices_packed_alibi",
     kForward,
     ALTER(sample.pack(); p.cu_seqlens_q.rank = p.cu_seqlens_k.rank = 0;
           p.slices = sample.numbers({0, 3, 0, 5, 0}, {1, 5})),
     {"alibi_slopes", "slices of packed"},
     TILEWISE_UNSUPPORTED},
    {"slices_packed_seqused",
     kForward,
     ALTER(sample.pack(); p.cu_seqlens_q.rank = p.cu_seqlens_k.rank = 0; p.alibi_slopes.rank = 0;
           p.slices = sample.numbers({0, 3, 0, 5, 0}, {1, 5});
           p.seqused_k = sample.numbers({5}, {1})),
     {"seqused_k", "slices of packed"}},
    {"slices_packed_seqused_q",
     kForward,
     ALTER(sample.pack(); p.cu_seqlens_q.rank = p.cu_seqlens_k.rank = 0; p.alibi_slopes.rank = 0;
           p.slices = sample.numbers({0, 3, 0, 5, 0}, {1, 5});
           p.seqused_q = sample.numbers({3}, {1})),
     {"seqused_q", "slices of packed"}},
    // backward
    {"backward_lse_missing", kBackward, ALTER(p.lse.rank = 0), {"lse", "missing", "forward"}},
    {"dout_missing", kBackward, ALTER(p.dout.rank = 0), {"dout", "missing"}},
    {"dout_dtype", kBackward, ALTER(p.dout.dtype = TILEWISE_BF16), {"dout", "bf16", "fp32"}},
    {"dout_shape", kBackward, ALTER(p.dout.shape[1] = 4), {"dout", "(2, 4, 4, 6)", "(2, 3, 4, 6)"}},
    {"dlse_shape", kBackward, ALTER(p.dlse.shape[2] = 1), {"dlse", "(2, 4, 1)", "(2, 4, 3)"}},
    {"dq_shape", kBackward, ALTER(p.dq.shape[3] = 6), {"dq", "(2, 3, 4, 6)", "(2, 3, 4, 8)"}},
    {"dk_dtype", kBackward, ALTER(p.dk.dtype = TILEWISE_INT64), {"dk", "int64", "fp32"}},
    {"dv_shape", kBackward, ALTER(p.dv.shape[2] = 4), {"dv", "(2, 5, 4, 6)", "(2, 5, 2, 6)"}},
    {"dv_innermost", kBackward, ALTER(p.dv.strides[3] = 2), {"dv", "innermost stride is 2", "1"}},
    {"dbias_alone", kBackward, ALTER(p.bias.rank = 0), {"dbias", "without bias"}},
    {"dbias_dtype", kBackward, ALTER(p.dbias.dtype = TILEWISE_FP64), {"dbias", "fp64", "fp32"}},
    {"dbias_shape",
     kBackward,
     ALTER(p.dbias.shape[0] = 2),
     {"dbias", "(2, 4, 3, 5)", "(1, 4, 3, 5)"}},
    {"dsink_alone", kBackward, ALTER(p.sink.rank = 0), {"dsink", "without sink"}},
    {"dsink_dtype", kBackward, ALTER(p.dsink.dtype = TILEWISE_BF16), {"dsink", "bf16", "fp32"}},
    {"dalibi_alone",
     kBackward,
     ALTER(p.dalibi_slopes = sample.tensor(TILEWISE_FP32, {kH}); p.alibi_slopes.rank = 0),
     {"dalibi_slopes", "without alibi_slopes"}},
    {"dalibi_shape",
     kBackward,
     ALTER(p.alibi_slopes = sample.tensor(TILEWISE_FP32, {2, kH});
           p.dalibi_slopes = sample.tensor(TILEWISE_FP32, {kH})),
     {"dalibi_slopes", "rank is 1", "2"}},
    {"dsink_shape", kBackward, ALTER(p.dsink.shape[0] = 2), {"dsink", "(2)", "(H) = (4)"}},
    // pointers
    {"q_null", kForward, ALTER(p.q.data = nullptr), {"q", "NULL", "has elements"}},
    {"mask_null", kForward, ALTER(p.mask.data = nullptr), {"mask", "NULL"}},
    {"dk_null", kBackward, ALTER(p.dk.data = nullptr), {"dk", "NULL"}},
    {"misaligned",
     kForward,
     ALTER(p.v.data = static_cast<char*>(p.v.data) + 2),
     {"v", "data is 0x", "multiple of 4 bytes (fp32)"}},
};

class Validation : public testing::TestWithParam<Fault> {};

INSTANTIATE_TEST_SUITE_P(Fault, Validation, testing::ValuesIn(kFaults),
                         [](const auto& fault) { return std::string(fault.param.name); });

TEST_P(Validation, NamesArgumentValueAndLimit) { expect_fault(GetParam()); }

// The sample itself is valid, packed too, so each test above fails because of its one change.
TEST(Validation, TheSampleIsValid) {
  Sample dense;
  EXPECT_EQ(run(kForward, dense.request), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ(run(kBackward, dense.request), TILEWISE_OK) << tilewise_last_error();
  Sample packed;
  packed.pack();
  EXPECT_EQ(run(kForward, packed.request), TILEWISE_OK) << tilewise_last_error();
}

// A plan ignores pointers; the one-call functions check all that they use.
TEST(Validation, PlansIgnorePointers) {
  Sample sample;
  for (const problem::NamedTensor& named : problem::kTensors) {
    (sample.request.*named.member).data = nullptr;
  }
  tilewise_plan* plan = nullptr;
  for (const std::int32_t operation : {TILEWISE_FORWARD, TILEWISE_BACKWARD}) {
    ASSERT_EQ(tilewise_plan_create(operation, &sample.request, nullptr, &plan), TILEWISE_OK)
        << tilewise_last_error();
    tilewise_plan_destroy(plan);
  }
}

// Tensors that an operation does not use are ignored.
TEST(Validation, ForwardIgnoresGradients) {
  Sample sample;
  sample.request.dq.dtype = 77;
  sample.request.dout.rank = 9;
  EXPECT_EQ(run(kForward, sample.request), TILEWISE_OK) << tilewise_last_error();
}

// Strides of dimensions of size 0 and 1 may hold anything.
TEST(Validation, StridesOfSingleElementsAreIgnored) {
  Sample sample;
  for (const auto member : {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v,
                            &tilewise_problem::out, &tilewise_problem::lse}) {
    (sample.request.*member).shape[0] = 1;
    (sample.request.*member).strides[0] = INT64_MIN;
  }
  sample.request.mask.rank = 0;
  EXPECT_EQ(run(kForward, sample.request), TILEWISE_OK) << tilewise_last_error();
}

}  // namespace
}  // namespace tilewise::tests
