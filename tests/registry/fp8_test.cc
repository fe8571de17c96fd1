// fp8 on every kernel that reads it: the cases of verify/cases.h, and all codes of both formats, as
// keys, queries and values, in decoding and in the main loop. q, k and v are of one head.
#include <cmath>
#include <cstring>

#include "math/float8.h"
#include "registry/support.h"
#include "verify/cases.h"

namespace tilewise::tests {
namespace {

constexpr float kScale = 0.3f;

TEST(Fp8, EveryKernelPassesTheCaseTable) {
  TILEWISE_TRACE_SEED();
  int count = 0;
  for (const Case& description : verify::check_cases(run_seed())) {
    if (!problem::is_fp8(description.dtype)) continue;
    expect_all_pass(description);
    ++count;
  }
  EXPECT_GE(count, 10);
}

// Runs a kernel on an instance whose scales are kScale.
void run_scaled(const Kernel& kernel, Instance& instance) {
  const tilewise_problem& request = instance.request();
  for (const auto member :
       {&tilewise_problem::q_descale, &tilewise_problem::k_descale, &tilewise_problem::v_descale}) {
    if ((request.*member).rank != 0) verify::write_element(request.*member, 0, kScale);
  }
  instance.prepare(Operation::kForward);
  ASSERT_EQ(run_kernel(kernel.name, Operation::kForward, request), TILEWISE_OK)
      << problem::message();
}

Case one_head(std::int32_t dtype, std::int64_t queries, std::int64_t head_dim,
              std::int64_t value_dim) {
  Case c = make_case(Operation::kForward, dtype, {1, queries, 1, 1, 1, head_dim});
  c.value_dim = value_dim;
  c.output_dtype = TILEWISE_FP32;
  c.scale = 1;
  c.descale = verify::Descale::kTensor;
  return c;
}

// step: elements between two codes
void write_codes(const tilewise_tensor& tensor, bool finite_only, std::int64_t step = 1) {
  for (int code = 0; code < 256; ++code) {
    const std::int64_t offset = code * step;
    const std::uint8_t bits = static_cast<std::uint8_t>(code);
    std::memcpy(static_cast<std::uint8_t*>(tensor.data) + offset, &bits, 1);
    if (finite_only && !std::isfinite(verify::read_element(tensor, offset)))
      verify::write_element(tensor, offset, 0);
  }
}

float scaled(double stored) { return static_cast<float>(stored) * kScale; }

// A single key has the prob 1, so that O is its value.
TEST(Fp8, EveryCodeOfAValueReachesTheOutput) {
  for (const std::int32_t dtype : kFp8Dtypes) {
    for (const std::int64_t queries : {1, 50}) {
      const Case c = one_head(dtype, queries, 16, 256);
      for (const Kernel* kernel : kernels_for(Instance(c))) {
        SCOPED_TRACE(kernel->name);
        Instance instance(c);
        verify::for_each_element(instance.request().k, [&](std::int64_t, std::int64_t offset) {
          verify::write_element(instance.request().k, offset, 0);
        });
        write_codes(instance.request().v, false);
        run_scaled(*kernel, instance);
        for (std::int64_t at = 0; at < queries * 256; ++at) {
          const float expected = scaled(verify::read_element(instance.request().v, at % 256));
          const float out = static_cast<const float*>(instance.request().out.data)[at];
          if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(out)) << at;
          } else {
            ASSERT_EQ(out, expected) << at;
          }
        }
      }
    }
  }
}

// The scores of unit vectors are the numbers of the key; with one key they are the LSE.
TEST(Fp8, EveryFiniteCodeOfAKeyReachesTheScores) {
  for (const std::int32_t dtype : kFp8Dtypes) {
    Case c = one_head(dtype, 256, 256, 16);
    c.q_dtype = TILEWISE_FP32;
    for (const Kernel* kernel : kernels_for(Instance(c))) {
      SCOPED_TRACE(kernel->name);
      Instance instance(c);
      const tilewise_problem& request = instance.request();
      verify::for_each_element(request.q, [&](std::int64_t i, std::int64_t offset) {
        verify::write_element(request.q, offset, i / 256 == i % 256 ? 1 : 0);
      });
      write_codes(request.k, true);
      run_scaled(*kernel, instance);
      for (std::int64_t i = 0; i < 256; ++i) {
        ASSERT_FLOAT_EQ(static_cast<const float*>(request.lse.data)[i],
                        scaled(verify::read_element(request.k, i)))
            << i;
      }
    }
  }
}

TEST(Fp8, EveryFiniteCodeOfAQueryReachesTheScores) {
  for (const std::int32_t dtype : kFp8Dtypes) {
    const Case c = one_head(dtype, 256, 256, 16);
    for (const Kernel* kernel : kernels_for(Instance(c))) {
      SCOPED_TRACE(kernel->name);
      Instance instance(c);
      const tilewise_problem& request = instance.request();
      for (const tilewise_tensor& tensor : {request.q, request.k}) {
        verify::for_each_element(tensor, [&](std::int64_t, std::int64_t offset) {
          verify::write_element(tensor, offset, 0);
        });
      }
      write_codes(request.q, true, 256);
      verify::write_element(request.k, 0, 1);
      run_scaled(*kernel, instance);
      for (std::int64_t i = 0; i < 256; ++i) {
        ASSERT_FLOAT_EQ(static_cast<const float*>(request.lse.data)[i],
                        scaled(verify::read_element(request.q, 256 * i)) * kScale)
            << i;
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
