// What tilewise_quantise() refuses: the message names the argument, its value and the limit, and
// nothing is written.
#include <gtest/gtest.h>

#include <tilewise/tilewise_quantise.hpp>

#include "capi/quantise_oracle.h"

namespace tilewise::tests {
namespace {

struct Refusal {
  const char* name;
  void (*alter)(QuantiseTask& task);
  std::vector<const char*> words;
  std::int32_t status = TILEWISE_INVALID_ARGUMENT;
};

void set_scale(QuantiseTask& task, float last) {
  task.request.fixed_scales = 1;
  std::fill(task.scales.begin(), task.scales.end(), 1.0f);
  task.scales.back() = last;
}

#define ALTER_TASK(...)     \
  [](QuantiseTask& task) {  \
    auto& r = task.request; \
    (void)r;                \
    __VA_ARGS__;            \
  }
const Refusal kRefusals[] = {
    {"layout", ALTER_TASK(r.layout = 2), {"layout", "2", "0 or 1"}},
    {"incoherent", ALTER_TASK(r.incoherent = -1), {"incoherent", "-1", "0 or 1"}},
    {"fixed", ALTER_TASK(r.fixed_scales = 3), {"fixed_scales", "3", "0 or 1"}},
    {"reserved", ALTER_TASK(r.reserved = 1), {"reserved", "1", "0"}},
    {"no_input", ALTER_TASK(r.input.rank = 0), {"input", "rank is 0", "4: (B, S, H, D)"}},
    {"input_dtype",
     ALTER_TASK(r.input.dtype = TILEWISE_FP64),
     {"input", "fp64", "fp32, bf16 or fp16"}},
    {"input_stride", ALTER_TASK(r.input.strides[3] = 2), {"input", "innermost stride is 2"}},
    {"input_null", ALTER_TASK(r.input.data = nullptr), {"input", "NULL"}},
    {"input_on_gpu", ALTER_TASK(r.input.device = TILEWISE_CUDA), {"output", "cpu", "cuda:0"}},
    {"output_dtype",
     ALTER_TASK(r.output.dtype = TILEWISE_INT32),
     {"output", "int32", "e4m3 or e5m2"}},
    {"output_wide", ALTER_TASK(r.output.dtype = TILEWISE_BF16), {"output", "bf16", "e4m3 or e5m2"}},
    {"output_shape",
     ALTER_TASK(r.output.shape[1] = 199),
     {"output", "(2, 199, 4, 64)", "(2, 200, 4, 64)"}},
    {"output_folded", ALTER_TASK(r.output.strides[0] = 0), {"output", "share an address"}},
    {"output_is_input",
     ALTER_TASK(r.output.data = r.input.data),
     {"output", "shares memory with input"}},
    {"no_descale", ALTER_TASK(r.descale.rank = 0), {"descale", "absent"}},
    {"descale_dtype", ALTER_TASK(r.descale.dtype = TILEWISE_BF16), {"descale", "bf16", "fp32"}},
    {"descale_heads", ALTER_TASK(r.descale.shape[1] = 3), {"descale", "3 heads", "4 heads"}},
    {"descale_blocks", ALTER_TASK(r.descale.shape[2] = 1), {"descale", "(2, 2, 1)", "(2, 2, 2)"}},
    {"descale_batch",
     ALTER_TASK(r.descale.rank = 2; r.descale.shape[0] = 1),
     {"descale", "(1, 2)", "(2, 2)"}},
    {"descale_vector", ALTER_TASK(r.descale.rank = 1), {"descale", "(2)", "(1)"}},
    {"counter_dtype",
     ALTER_TASK(r.saturated.dtype = TILEWISE_INT32),
     {"saturated", "int32", "int64"}},
    {"counter_shape", ALTER_TASK(r.saturated.shape[0] = 2), {"saturated", "(2)", "(1)"}},
    {"counter_in_scales", ALTER_TASK(r.saturated.data = r.descale.data), {"shares memory"}},
    {"starts_of_dense", ALTER_TASK(r.cu_seqlens = r.saturated), {"cu_seqlens", "packed input"}},
    {"rotated_with_scales",
     ALTER_TASK(r.incoherent = 1; r.output.dtype = TILEWISE_BF16; r.output.data = nullptr),
     {"descale", "output of bf16"}},
    {"scale_zero",
     ALTER_TASK(set_scale(task, 0)),
     {"descale[1][1][1]", "is 0", "2^-126 and 2^126"}},
    {"scale_negative", ALTER_TASK(set_scale(task, -2)), {"descale[1][1][1]", "is -2"}},
    {"scale_nan", ALTER_TASK(set_scale(task, NAN)), {"descale[1][1][1]", "nan"}},
    {"scale_infinite", ALTER_TASK(set_scale(task, HUGE_VALF)), {"descale[1][1][1]", "is inf"}},
    {"scale_denormal", ALTER_TASK(set_scale(task, 1e-40f)), {"descale[1][1][1]", "e-41"}},
    {"scale_huge", ALTER_TASK(set_scale(task, 3e38f)), {"descale[1][1][1]", "3e+38"}},
};
#undef ALTER_TASK

TEST(Quantise, RefusalsNameTheArgumentAndWriteNothing) {
  for (const Refusal& refusal : kRefusals) {
    SCOPED_TRACE(refusal.name);
    QuantiseTask task((QuantiseCase()));
    refusal.alter(task);
    const std::vector<float> scales = task.scales;
    const std::vector<std::uint8_t> poison(task.output_bytes().size(), 0xAA);
    EXPECT_EQ(tilewise_quantise(&task.request, nullptr), refusal.status);
    const std::string message = tilewise_last_error();
    for (const char* const word : refusal.words)
      EXPECT_NE(message.find(word), std::string::npos) << message << " lacks: " << word;
    EXPECT_EQ(task.output_bytes(), poison);
    EXPECT_EQ(std::memcmp(task.scales.data(), scales.data(), scales.size() * sizeof(float)), 0);
    EXPECT_EQ(task.saturated, 0);
  }
}

TEST(Quantise, StartsOfSequencesAreChecked) {
  QuantiseCase c;
  c.packed = true;
  c.scales = 2;
  for (const std::vector<std::int64_t>& starts :
       {std::vector<std::int64_t>{-1, 200}, {0, 201}, {5, 3}}) {
    c.starts = starts;
    QuantiseTask task(c);
    EXPECT_EQ(tilewise_quantise(&task.request, nullptr), TILEWISE_INVALID_ARGUMENT);
    const std::string message = tilewise_last_error();
    EXPECT_NE(message.find("cu_seqlens["), std::string::npos) << message;
    EXPECT_EQ(task.scales[0], -7.0f);
  }
}

TEST(Quantise, TheStructIsChecked) {
  tilewise_quantisation request;
  tilewise_quantisation_init(&request);
  request.struct_size = 8;
  EXPECT_EQ(tilewise_quantise(&request, nullptr), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_quantise(nullptr, nullptr), TILEWISE_INVALID_ARGUMENT);
  EXPECT_THROW(quantise(Quantisation()), Error);
}

}  // namespace
}  // namespace tilewise::tests
