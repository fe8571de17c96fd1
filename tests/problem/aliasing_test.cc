// Tests which tensors may share memory.
#include <gtest/gtest.h>

#include "problem/sample.h"
#include "problem/validate.h"
#include "verify/random.h"
#include "verify/tensor.h"

namespace tilewise::tests {
namespace {

void expect_shared(Operation operation, const tilewise_problem& request, const char* output,
                   const char* other) {
  EXPECT_EQ(run(operation, request), TILEWISE_INVALID_ARGUMENT);
  const std::string message = tilewise_last_error();
  EXPECT_EQ(message.rfind(std::string(output) + " shares memory with " + other, 0), 0u) << message;
}

TEST(Aliasing, AnOutputIsNoInput) {
  Sample sample;
  sample.request.out.data = sample.request.q.data;
  expect_shared(kForward, sample.request, "out", "q");
  Sample lse;
  lse.request.lse.data = lse.request.sink.data;
  expect_shared(kForward, lse.request, "lse", "sink");
  Sample gradient;
  gradient.request.dv.data = static_cast<float*>(gradient.request.out.data) + 10;
  expect_shared(kBackward, gradient.request, "dv", "out");
}

TEST(Aliasing, OutputsAreNotEachOther) {
  Sample sample;
  sample.request.dk.data = sample.request.dq.data;
  expect_shared(kBackward, sample.request, "dq", "dk");
}

TEST(Aliasing, InputsMayShare) {
  Sample sample;
  sample.request.v = sample.request.k;
  sample.request.out = sample.tensor(TILEWISE_FP32, {kB, kSq, kH, kD});
  EXPECT_EQ(run(kForward, sample.request), TILEWISE_OK) << tilewise_last_error();
}

// out of forward is an input of backward.
TEST(Aliasing, RolesAreThoseOfTheOperation) {
  Sample sample;
  sample.request.dq.data = sample.request.out.data;
  EXPECT_EQ(run(kForward, sample.request), TILEWISE_OK) << tilewise_last_error();
  expect_shared(kBackward, sample.request, "dq", "out");
}

// Returns q, k or v as a view of one (B, S, H + 2 Hk, D) buffer, or dq, dk or dv of another.
tilewise_tensor part(tilewise_tensor whole, std::int64_t first, std::int64_t heads) {
  whole.data = static_cast<float*>(whole.data) + first * whole.strides[2];
  whole.shape[2] = heads;
  return whole;
}

TEST(Aliasing, InterleavedViewsAreAccepted) {
  Sample sample;
  tilewise_problem& p = sample.request;
  const tilewise_tensor packed = sample.tensor(TILEWISE_FP32, {kB, kSq, kH + 2 * kHk, kD});
  const tilewise_tensor gradients = sample.tensor(TILEWISE_FP32, {kB, kSq, kH + 2 * kHk, kD});
  p.q = part(packed, 0, kH);
  p.k = part(packed, kH, kHk);
  p.v = part(packed, kH + kHk, kHk);
  p.dq = part(gradients, 0, kH);
  p.dk = part(gradients, kH, kHk);
  p.dv = part(gradients, kH + kHk, kHk);
  p.out = sample.tensor(TILEWISE_FP32, {kB, kSq, kH, kD});
  p.dout = sample.tensor(TILEWISE_FP32, {kB, kSq, kH, kD});
  p.mask.rank = p.bias.rank = p.dbias.rank = 0;
  EXPECT_EQ(run(kForward, p), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ(run(kBackward, p), TILEWISE_OK) << tilewise_last_error();
  p.dk = part(gradients, kH - 1, kHk);  // one head too early: it overlaps the last head of dq
  expect_shared(kBackward, p, "dq", "dk");
  p.dk = part(packed, kH, kHk);  // interleaved with inputs: its elements are those of k
  expect_shared(kBackward, p, "dk", "k");
}

TEST(Aliasing, AnOutputMayNotMeetItself) {
  Sample sample;
  sample.request.out.strides[1] = 0;
  EXPECT_EQ(run(kForward, sample.request), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(tilewise_last_error()).rfind("out: two of its elements share", 0), 0u)
      << tilewise_last_error();
  sample.request.out.strides[1] = 8;  // rows overlap heads
  EXPECT_EQ(run(kForward, sample.request), TILEWISE_INVALID_ARGUMENT);
}

// Negative strides reach below the pointer.
TEST(Aliasing, NegativeStridesAreFollowed) {
  Sample sample;
  tilewise_problem& p = sample.request;
  p.out.data = static_cast<float*>(p.out.data) + (kSq - 1) * p.out.strides[1];
  p.out.strides[1] = -p.out.strides[1];
  EXPECT_EQ(run(kForward, p), TILEWISE_OK) << tilewise_last_error();
  p.sink.data = static_cast<float*>(p.out.data) - 20;
  expect_shared(kForward, p, "out", "sink");
}

// Counts the elements at each position of a buffer that `tensors` point into; true if two share
// one.
bool share_by_brute_force(const float* base, const std::vector<const tilewise_tensor*>& tensors) {
  std::vector<int> owners(8000, 0);
  bool shared = false;
  for (const tilewise_tensor* tensor : tensors) {
    verify::for_each_element(*tensor, [&](std::int64_t, std::int64_t offset) {
      const std::ptrdiff_t place = static_cast<float*>(tensor->data) - base + offset;
      shared = ++owners[static_cast<std::size_t>(place)] > 1 || shared;
    });
  }
  return shared;
}

// Outputs with the strides of one buffer are refused if and only if two elements share an address.
TEST(Aliasing, InterleavedViewsAgreeWithBruteForce) {
  verify::Random random(20240607);
  int refused = 0;
  for (int step = 0; step < 4000; ++step) {
    Sample sample;
    tilewise_problem& p = sample.request;
    p.mask.rank = p.bias.rank = p.dbias.rank = p.dv.rank = 0;
    const float* const base = static_cast<float*>(p.dq.data);
    for (tilewise_tensor* tensor : {&p.dq, &p.dk}) tensor->strides[0] = 600;
    p.dk.data = static_cast<float*>(p.dq.data) + random.between(0, 120);
    p.dq.strides[2] = p.dk.strides[2] = random.pick<std::int64_t>({8, 9, 16, 24});
    p.dq.strides[1] = p.dk.strides[1] = random.pick<std::int64_t>({32, 64, 96, 112});
    const bool shared = share_by_brute_force(base, {&p.dq, &p.dk});
    const problem::Status status = problem::check_pointers(kBackward, p);
    ASSERT_EQ(status == TILEWISE_INVALID_ARGUMENT, shared) << step << problem::message();
    refused += shared ? 1 : 0;
  }
  EXPECT_GT(refused, 400);
  EXPECT_LT(refused, 3600);
}

// The same rule holds for one output of any strides.
TEST(Aliasing, OwnElementsAgreeWithBruteForce) {
  verify::Random random(5);
  int refused = 0;
  for (int step = 0; step < 20000; ++step) {
    Sample sample;
    tilewise_tensor& out = sample.request.out;
    for (int d = 0; d < 3; ++d) out.strides[d] = random.between(1, 60);
    const bool shared = share_by_brute_force(static_cast<float*>(out.data), {&out});
    const problem::Status status = problem::check_pointers(kForward, sample.request);
    ASSERT_EQ(status == TILEWISE_INVALID_ARGUMENT, shared)
        << out.strides[0] << " " << out.strides[1] << " " << out.strides[2];
    refused += shared ? 1 : 0;
  }
  EXPECT_LT(refused, 19900);
}

}  // namespace
}  // namespace tilewise::tests
