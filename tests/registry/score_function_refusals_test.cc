// Score functions that are not valid, and what cannot take one.
#include <tilewise/tilewise_distributed.hpp>

#include "registry/score_function_cases.h"

namespace tilewise::tests {
namespace {

void forward_only(void*, const tilewise_score_tile*, void*) {}
void backward_only(void*, const tilewise_score_tile*, const void*, void*) {}

Case small_case(Operation operation) {
  Case c = make_case(operation, TILEWISE_BF16, {1, 5, 7, 2, 1, 8});
  c.output_dtype = TILEWISE_FP32;
  return c;
}

std::string message_of(Operation operation, const tilewise_problem& request) {
  const tilewise_status status = operation == Operation::kForward
                                     ? tilewise_forward(&request, nullptr)
                                     : tilewise_backward(&request, nullptr);
  return status == TILEWISE_OK ? "" : tilewise_last_error();
}

TEST(ScoreFunctionRefusals, NameTheMember) {
  const Instance instance(small_case(Operation::kBackward));
  tilewise_problem request = instance.request();
  request.score_function.forward = forward_only;
  EXPECT_EQ(message_of(Operation::kForward, request), "");
  EXPECT_EQ(message_of(Operation::kBackward, request),
            "score_function: backward is NULL, the backward pass needs it");
  request.score_function.reserved = 3;
  EXPECT_EQ(message_of(Operation::kForward, request), "score_function: reserved is 3, must be 0");
  request.score_function = {nullptr, backward_only, nullptr, 0};
  EXPECT_EQ(message_of(Operation::kForward, request),
            "score_function: forward is NULL, but backward is given");
  request.score_function = {nullptr, nullptr, &request, 0};
  EXPECT_EQ(message_of(Operation::kForward, request),
            "score_function: forward is NULL, but user_data is given");
}

TEST(ScoreFunctionRefusals, OneCallableIsForTheForwardPass) {
  const ScoreFunction function([](const ScoreTile&, auto*) {});
  const Instance instance(small_case(Operation::kBackward));
  tilewise_problem request = instance.request();
  request.score_function = function.get();
  EXPECT_EQ(message_of(Operation::kForward, request), "");
  EXPECT_EQ(message_of(Operation::kBackward, request),
            "score_function: backward is NULL, the backward pass needs it");
}

TEST(ScoreFunctionRefusals, KernelsThatCannotCallNameIt) {
  const Instance instance(small_case(Operation::kForward));
  tilewise_problem request = instance.request();
  request.score_function.forward = forward_only;
  EXPECT_EQ(tilewise_kernel_supports(TILEWISE_FORWARD, "cpu_amx", &request), TILEWISE_UNSUPPORTED);
  EXPECT_STREQ(tilewise_last_error(),
               "score_function: cpu_amx keeps sums in tile registers, which no call preserves");
  for (const auto& member : {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v,
                             &tilewise_problem::out, &tilewise_problem::lse})
    (request.*member).device = TILEWISE_CUDA;
  for (const Kernel* kernel : plan::kernels(Operation::kForward)) {
    if (kernel->device != TILEWISE_CUDA) continue;
    EXPECT_EQ(tilewise_kernel_supports(TILEWISE_FORWARD, kernel->name, &request),
              TILEWISE_UNSUPPORTED);
    EXPECT_EQ(std::string(tilewise_last_error()),
              std::string("score_function: is a function of the host, which ") + kernel->name +
                  " cannot call");
  }
}

TEST(ScoreFunctionRefusals, RanksNameIt) {
  const Instance instance(small_case(Operation::kForward));
  Problem problem;
  static_cast<tilewise_problem&>(problem) = instance.request();
  problem.score_function.forward = forward_only;
  const LocalGroup group(1);
  DistributedOptions options;
  options.q_len = 5;
  options.k_len = 7;
  try {
    forward(problem, options, group.communicator(0));
    FAIL() << "took a score function";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "score_function: not supported by distributed attention");
  }
}

}  // namespace
}  // namespace tilewise::tests
