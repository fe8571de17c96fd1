// Options are doubles, and most kernels compute with floats: every option that validation accepts
// must give the results that the formulas give.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <string>

#include "problem/sample.h"
#include "problem/validate.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

Case softcap_case(Operation operation, std::int32_t dtype, double softcap) {
  Case c = make_case(operation, dtype, {2, 45, 70, 4, 2, 32});
  c.causal = true;
  c.softcap = softcap;
  return c;
}

// The last of these is applied by the kernels, the others count as none.
constexpr double kLargeSoftcaps[] = {DBL_MAX, 1e39, FLT_MAX, 3e38, 1e38, 1e30, 9e29};

TEST(Softcap, ALargeOnePassesTheAccuracyRule) {
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      for (const double softcap : kLargeSoftcaps) {
        expect_all_pass(softcap_case(operation, dtype, softcap));
      }
    }
  }
}

TEST(Softcap, OneThatCountsAsNoneGivesTheSameBits) {
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      Instance instance(softcap_case(operation, dtype, 0));
      give_forward_results(instance);
      for (const Kernel* kernel : kernels_for(instance)) {
        const auto expected = run_for_bits(kernel->name, instance);
        for (const double softcap : {3e38, 1e39, DBL_MAX}) {
          if (dtype == TILEWISE_FP64 && softcap < 1e300) continue;
          Instance capped(softcap_case(operation, dtype, softcap));
          capped.set_forward_results(instance.request());
          EXPECT_EQ(run_for_bits(kernel->name, capped), expected) << kernel->name << " " << softcap;
        }
      }
    }
  }
}

TEST(Softcap, ASmallOneMakesAllProbabilitiesEqual) {
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      for (const double softcap : {DBL_TRUE_MIN, 1e-310, 1e-50, 1e-40, 1e-37, 1e-20})
        expect_all_pass(softcap_case(operation, dtype, softcap));
    }
  }
}

TEST(Scale, TheLargestGivesFiniteScoresOfTinyInputs) {
  for (const Operation operation : kOperations) {
    for (const double scale : {1e30, -1e30, 1e20}) {
      Case c = make_case(operation, TILEWISE_FP32, {2, 45, 70, 4, 2, 32});
      c.scale = scale;
      expect_all_pass(c, [&](const tilewise_problem& request) {
        for (const tilewise_tensor* tensor : {&request.q, &request.k}) {
          verify::for_each_element(*tensor, [&](std::int64_t, std::int64_t at) {
            const double value = verify::read_element(*tensor, at);
            verify::write_element(*tensor, at, value / std::sqrt(std::fabs(scale)) / 2);
          });
        }
      });
    }
  }
}

TEST(Scale, OneThatTheArithmeticCannotHoldIsRefused) {
  Sample sample;
  for (const double scale : {1.01e30, -1.01e30, 1e39, DBL_MAX}) {
    sample.request.softmax_scale = scale;
    EXPECT_EQ(tilewise_forward(&sample.request, nullptr), TILEWISE_INVALID_ARGUMENT);
    const std::string message = tilewise_last_error();
    EXPECT_EQ(message.rfind("softmax_scale: is ", 0), 0u) << message;
    EXPECT_NE(message.find("must be from -1e+30 to 1e+30 for fp32 tensors"), std::string::npos)
        << message;
  }
  for (const double scale : {1e30, -1e30, 0.0, DBL_TRUE_MIN}) {
    sample.request.softmax_scale = scale;
    EXPECT_EQ(tilewise_forward(&sample.request, nullptr), TILEWISE_OK) << tilewise_last_error();
  }
}

// 1 - p is at least 2^-53, whose reciprocal every arithmetic type holds.
TEST(Dropout, TheLargestProbabilityGivesFiniteResults) {
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : {TILEWISE_FP64, TILEWISE_FP32}) {
      for (const double p : {std::nextafter(1.0, 0.0), 1 - 1e-10, DBL_TRUE_MIN}) {
        Case c = make_case(operation, dtype, {1, 20, 30, 2, 1, 16});
        c.dropout_p = p;
        expect_all_pass(c);
      }
    }
  }
}

// The bounds of a window are added to positions.
TEST(Window, TheLargestBoundsDoNotOverflow) {
  for (const Operation operation : kOperations) {
    Case c = make_case(operation, TILEWISE_FP32, {1, 20, 30, 2, 1, 16});
    c.window_left = c.window_right = INT64_MAX;
    expect_all_pass(c);
    c.window_right = 0;
    expect_all_pass(c);
    c.window_left = 3;
    c.window_right = INT64_MAX;
    expect_all_pass(c);
  }
}

}  // namespace
}  // namespace tilewise::tests
