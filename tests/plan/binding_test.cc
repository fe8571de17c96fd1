// A plan runs only the problem that it was made for: every size, dtype and option is part of it.
// Strides, pointers, the scale, seeds and the contents of tensors are not.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "problem/sample.h"
#include "registry/support.h"
#include "verify/tensor.h"

namespace tilewise::tests {
namespace {

using verify::Descale;
using verify::Slice;

struct Binding {
  const char* name;
  const char* argument;              // that the message begins with
  std::function<void(Case&)> given;  // of both problems
  std::function<void(Case&)> other;  // of the second one alone
};
void PrintTo(const Binding& binding, std::ostream* out) { *out << binding.name; }

#define CASE(...) [](Case& c) { __VA_ARGS__; }
const auto kNothing = CASE((void)c);
const auto kGradients = CASE(c.operation = kBackward);
const auto kSoftenedBackward =
    CASE(c.operation = kBackward; c.alibi = true; c.bias.present = true; c.sink = true);
const auto kPacked =
    CASE(c.q_packed = c.k_packed = true; c.q_lengths = {3, 1}; c.k_lengths = {4, 2});
const auto kSliced = CASE(c.slices = {Slice{0, 3, 0, 5, 0, -1}});
const auto kFp8 = CASE(c.dtype = TILEWISE_E4M3);

const Binding kBindings[] = {
    {"batch", "q: ", kNothing, CASE(c.batch = 3)},
    {"heads", "q: ", kNothing, CASE(c.heads = 8)},
    {"head_dim", "q: ", kNothing, CASE(c.head_dim = 16)},
    {"queries", "q: ", kNothing, CASE(c.q_len = 4)},
    {"dtype", "q: ", kNothing, CASE(c.dtype = TILEWISE_BF16)},
    {"kv_heads", "k: ", kNothing, CASE(c.kv_heads = 4)},
    {"keys", "k: ", kNothing, CASE(c.k_len = 6)},
    {"dtype_of_keys", "k: ", CASE(c.dtype = TILEWISE_E4M3; c.q_dtype = TILEWISE_BF16),
     CASE(c.dtype = TILEWISE_E5M2)},
    {"value_dim", "v: ", kNothing, CASE(c.value_dim = 7)},
    {"dtype_of_out", "out: ", CASE(c.dtype = TILEWISE_BF16), CASE(c.output_dtype = TILEWISE_FP32)},
    {"lse", "lse: ", kNothing, CASE(c.lse = false)},
    {"dlse", "dlse: ", kGradients, CASE(c.dlse = true)},
    {"dq", "dq: ", kGradients, CASE(c.gradients &= ~verify::kDQ)},
    {"dk", "dk: ", kGradients, CASE(c.gradients &= ~verify::kDK)},
    {"dv", "dv: ", kGradients, CASE(c.gradients &= ~verify::kDV)},
    {"mask", "mask: ", kNothing, CASE(c.mask.present = true)},
    {"bias", "bias: ", kNothing, CASE(c.bias.present = true)},
    {"dtype_of_bias", "bias: ", CASE(c.dtype = TILEWISE_BF16; c.bias.present = true),
     CASE(c.bias_fp32 = true)},
    {"shape_of_bias", "bias: ", CASE(c.bias.present = true), CASE(c.bias.full[1] = false)},
    {"dbias", "dbias: ", kSoftenedBackward, CASE(c.gradients &= ~verify::kDBias)},
    {"alibi_slopes", "alibi_slopes: ", kNothing, CASE(c.alibi = true)},
    {"shape_of_slopes", "dalibi_slopes: ",
     CASE(c.operation = kBackward; c.alibi = true; c.gradients |= verify::kDAlibiSlopes),
     CASE(c.alibi_per_batch = true)},
    {"dalibi_slopes", "dalibi_slopes: ", kSoftenedBackward,
     CASE(c.gradients |= verify::kDAlibiSlopes)},
    {"sink", "sink: ", kNothing, CASE(c.sink = true)},
    {"dsink", "dsink: ", kSoftenedBackward, CASE(c.gradients &= ~verify::kDSink)},
    {"phi", "phi: ", kNothing, CASE(c.phi = {1.0})},
    {"descale", "q_descale: ", kFp8, CASE(c.descale = Descale::kTensor)},
    {"packed_queries", "q: ", kNothing, kPacked},
    {"packed_keys", "cu_seqlens_k: ", CASE(c.q_packed = true; c.q_lengths = {3, 3}),
     CASE(c.k_packed = true; c.k_lengths = {3, 2}; c.unowned = 0)},
    {"max_seqlen_q", "max_seqlen_q: ", kPacked, CASE(c.q_lengths = {2, 2})},
    {"max_seqlen_k", "max_seqlen_k: ", kPacked, CASE(c.k_lengths = {3, 3})},
    {"seqused_q", "seqused_q: ", kNothing, CASE(c.used_q = {1, 2})},
    {"seqused_k", "seqused_k: ", kNothing, CASE(c.used = {1, 2})},
    {"slices", "slices: ", kNothing, kSliced},
    {"number_of_slices", "slices: ", kSliced, CASE(c.slices.push_back({0, 1, 0, 1, 0, -1}))},
    {"heads_of_slices", "slices: ", kSliced, CASE(c.slice_heads = true)},
    {"softcap", "softcap: ", kNothing, CASE(c.softcap = 2)},
    {"score_function", "score_function: ", kNothing, CASE(c.score_function = true)},
    {"dropout_p", "dropout_p: ", kNothing, CASE(c.dropout_p = 0.5)},
    {"alignment", "alignment: ", kNothing, CASE(c.alignment = TILEWISE_TOP_LEFT)},
    {"window_left", "window_left: ", kNothing, CASE(c.window_left = 3)},
    {"window_right", "causal or window_right: ", kNothing, CASE(c.window_right = 1)},
    {"causal", "causal or window_right: ", kNothing, CASE(c.causal = true)},
    {"deterministic", "deterministic: ", kNothing, CASE(c.deterministic = true)},
    {"batch_invariant", "batch_invariant: ", kNothing, CASE(c.batch_invariant = true)},
    {"pages", "page_table: ", kNothing, CASE(c.k_len = 6; c.page_size = 3)},
    {"page_size", "page_table: ", CASE(c.k_len = 6; c.page_size = 3),
     CASE(c.k_len = 4; c.page_size = 2)},
};

class PlanBinding : public testing::TestWithParam<Binding> {};
INSTANTIATE_TEST_SUITE_P(Fields, PlanBinding, testing::ValuesIn(kBindings),
                         [](const auto& binding) { return binding.param.name; });

struct PlanDeleter {
  void operator()(tilewise_plan* plan) const { tilewise_plan_destroy(plan); }
};

// Makes a plan for a problem and runs it with another one. Returns the message.
std::string run_planned(Operation operation, const tilewise_problem& planned,
                        const tilewise_problem& given) {
  tilewise_plan* made = nullptr;
  EXPECT_EQ(tilewise_plan_create(static_cast<std::int32_t>(operation), &planned, nullptr, &made),
            TILEWISE_OK)
      << tilewise_last_error();
  const std::unique_ptr<tilewise_plan, PlanDeleter> plan(made);
  std::size_t bytes = 0;
  EXPECT_EQ(tilewise_plan_workspace(made, &bytes, nullptr), TILEWISE_OK);
  const verify::Memory workspace(bytes);
  const auto status = tilewise_plan_run(made, &given, workspace.data(), bytes, nullptr);
  return status == TILEWISE_OK ? "" : tilewise_last_error();
}

TEST_P(PlanBinding, AnotherValueIsRefusedByName) {
  const Binding& binding = GetParam();
  Case planned = make_case(kForward, TILEWISE_FP32, {2, 3, 5, 4, 2, 8});
  binding.given(planned);
  Case given = planned;
  binding.other(given);
  Instance first(planned);
  Instance second(given);
  const auto operation = planned.operation;
  if (operation == kBackward) {
    give_forward_results(first);
    give_forward_results(second);
  }
  second.prepare(operation);
  const std::vector<std::uint64_t> before = output_bits(operation, second.request());
  const std::string expected =
      std::string(binding.argument) + "differs from what the plan was made for";
  EXPECT_EQ(run_planned(operation, first.request(), second.request()), expected);
  EXPECT_EQ(output_bits(operation, second.request()), before);  // nothing was written
  EXPECT_EQ(run_planned(operation, second.request(), second.request()), "");
}

TEST(PlanBinding, AnotherNumberOfPagesIsRefused) {
  Case description = make_case(kForward, TILEWISE_FP32, {2, 3, 6, 4, 2, 8});
  description.page_size = 3;
  const Instance instance(description);
  const std::string expected = "page_table: differs from what the plan was made for";
  tilewise_problem fewer = instance.request();
  fewer.k.shape[0] = fewer.v.shape[0] -= 1;
  EXPECT_EQ(run_planned(kForward, instance.request(), fewer), expected);
  tilewise_problem fewer_of_a_sequence = instance.request();
  fewer_of_a_sequence.page_table.shape[1] -= 1;
  EXPECT_EQ(run_planned(kForward, instance.request(), fewer_of_a_sequence), expected);
}

// Two devices are not at hand.
TEST(PlanBinding, AnotherDeviceIsADifference) {
  problem::Problem planned;
  problem::Problem given;
  EXPECT_EQ(plan::planned_difference(planned, given), nullptr);
  given.device_index = 1;
  EXPECT_STREQ(plan::planned_difference(planned, given), "q: device");
  given = planned;
  given.device = TILEWISE_CUDA;
  EXPECT_STREQ(plan::planned_difference(planned, given), "q: device");
}

// What no plan knows is checked by every run.
TEST(PlanBinding, ARunChecksPointers) {
  const Instance instance(make_case(kForward, TILEWISE_FP32, {2, 3, 5, 4, 2, 8}));
  tilewise_problem request = instance.request();
  request.k.data = nullptr;
  EXPECT_EQ(run_planned(kForward, instance.request(), request),
            "k: data is NULL but the tensor has elements");
  request = instance.request();
  request.out.data = request.q.data;
  EXPECT_EQ(run_planned(kForward, instance.request(), request),
            "out shares memory with q: outputs need memory of their own");
}

TEST(PlanBinding, StridesScaleSeedsAndContentsMayChange) {
  Case planned = make_case(kForward, TILEWISE_FP32, {2, 3, 5, 4, 2, 8});
  planned.dropout_p = 0.5;
  Case given = planned;
  given.storage = verify::Storage::kPadded;
  given.scale = 0.5;
  given.dropout_seed = 5;
  given.seed = 2;
  const Instance first(planned);
  const Instance second(given);
  EXPECT_EQ(run_planned(kForward, first.request(), second.request()), "");
}

}  // namespace
}  // namespace tilewise::tests
