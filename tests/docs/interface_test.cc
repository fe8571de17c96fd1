// The C++ code of README.md and docs/interface.md. The parts between "snippet: NAME" and "end of
// snippet" are quoted there word for word (scripts/check-docs checks this); here they are compiled,
// run and checked.
#include <gtest/gtest.h>
#include <tilewise/tilewise.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::int64_t batch = 2, length = 40, heads = 4, kv_heads = 2, dim = 16;
constexpr std::size_t q_size = batch * length * heads * dim;
constexpr std::size_t k_size = batch * length * kv_heads * dim;

std::vector<float> waves(std::size_t count, float frequency) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = std::sin(frequency * static_cast<float>(i));
  return values;
}

// Causal self-attention over dense tensors, with its results.
struct Layer {
  std::vector<float> q = waves(q_size, 0.1f), k = waves(k_size, 0.2f), v = waves(k_size, 0.3f);
  std::vector<float> out = std::vector<float>(q_size), lse = std::vector<float>(q_size / dim);

  tilewise::Problem problem() {
    tilewise::Problem problem;
    problem.causal = 1;
    problem.q = tilewise::tensor(std::span(q), {batch, length, heads, dim});
    problem.k = tilewise::tensor(std::span(k), {batch, length, kv_heads, dim});
    problem.v = tilewise::tensor(std::span(v), {batch, length, kv_heads, dim});
    problem.out = tilewise::tensor(std::span(out), {batch, length, heads, dim});
    problem.lse = tilewise::tensor(std::span(lse), {batch, heads, length});
    return problem;
  }
};

// Expects that row 0 of a causal layer sees key 0 only.
void expect_first_row_is_first_value(const Layer& layer) {
  for (std::size_t c = 0; c < dim; ++c) EXPECT_FLOAT_EQ(layer.out[c], layer.v[c]);
}

TEST(Interface, TheForwardSnippetWorks) {
  Layer layer;
  auto& [q, k, v, out, lse] = layer;
  // snippet: forward
  tilewise::Problem problem;  // every option off, every tensor absent
  problem.q = tilewise::tensor(std::span(q), {batch, length, heads, dim});
  problem.k = tilewise::tensor(std::span(k), {batch, length, kv_heads, dim});
  problem.v = tilewise::tensor(std::span(v), {batch, length, kv_heads, dim});
  problem.out = tilewise::tensor(std::span(out), {batch, length, heads, dim});
  problem.lse = tilewise::tensor(std::span(lse), {batch, heads, length});  // optional
  problem.causal = 1;
  tilewise::forward(problem);  // throws tilewise::Error, which names what is wrong
  // end of snippet
  expect_first_row_is_first_value(layer);
  EXPECT_GT(lse[1], lse[0]);
}

TEST(Interface, ThePartsSnippetWorks) {
  Layer whole;
  tilewise::forward(whole.problem());
  Layer layer;
  auto& [q, k, v, out, lse] = layer;
  tilewise::Problem problem = layer.problem();
  // snippet: parts
  std::fill(lse.begin(), lse.end(), -INFINITY);  // no keys yet; `out` may hold anything
  problem.accumulate = 1;
  for (const auto& [first, keys] :
       {std::pair{0, 17}, std::pair{17, 23}}) {  // 40 keys in two chunks
    problem.k = tilewise::tensor(std::span(k), {batch, length, kv_heads, dim});
    problem.v = tilewise::tensor(std::span(v), {batch, length, kv_heads, dim});
    for (tilewise_tensor* const chunk : {&problem.k, &problem.v}) {
      chunk->data = static_cast<float*>(chunk->data) + first * kv_heads * dim;
      chunk->shape[1] = keys;
    }
    const std::vector<std::int64_t> parts = {0, 0, first, 0,   // sequence 0: its row 0, key `first`
                                             1, 0, first, 0};  // and d = Sk - Sq = 0 of the whole
    problem.parts = tilewise::tensor(std::span(parts), {batch, 4});
    tilewise::forward(problem);
  }
  // end of snippet
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], whole.out[i], 1e-6) << i;
  for (std::size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse[i], whole.lse[i], 1e-5) << i;
}

TEST(Interface, TheBackwardSnippetWorks) {
  Layer layer;
  tilewise::Problem problem = layer.problem();
  tilewise::forward(problem);
  std::vector<float> dout(q_size, 1.0f), dq(q_size), dk(k_size), dv(k_size);
  // snippet: backward
  problem.dout = tilewise::tensor(std::span(dout), {batch, length, heads, dim});
  problem.dq = tilewise::tensor(std::span(dq), {batch, length, heads, dim});
  problem.dk = tilewise::tensor(std::span(dk), {batch, length, kv_heads, dim});
  problem.dv = tilewise::tensor(std::span(dv), {batch, length, kv_heads, dim});
  tilewise::backward(problem);  // reads q, k, v, out, lse, dout
  // end of snippet
  // Each row's probabilities sum to 1.
  double sum = 0;
  for (const float x : dv) sum += static_cast<double>(x);
  EXPECT_NEAR(sum, static_cast<double>(q_size), 0.05);
}

TEST(Interface, ThePlanSnippetWorks) {
  Layer layer;
  tilewise::Problem problem = layer.problem();
  // snippet: plan
  const tilewise::Plan plan(tilewise::Operation::kForward, problem);
  const tilewise::Workspace workspace = plan.make_workspace();
  for (int step = 0; step < 3; ++step) {
    plan.run(problem, workspace);  // allocates nothing
  }
  // end of snippet
  expect_first_row_is_first_value(layer);
  EXPECT_NE(plan.reason().find(plan.kernel()), std::string::npos);
}

TEST(Interface, ThePackedSnippetWorks) {
  constexpr std::int64_t tokens = 30;
  std::vector<float> q = waves(tokens * heads * dim, 0.1f);
  std::vector<float> k = waves(tokens * kv_heads * dim, 0.2f), v = k, out = q;
  std::vector<float> lse(heads * tokens);
  // snippet: packed
  const std::vector<std::int32_t> starts = {0, 7, 7, 30};  // three sequences: 7, 0 and 23 tokens
  tilewise::Problem problem;
  problem.causal = 1;
  problem.q = tilewise::tensor(std::span(q), {tokens, heads, dim});
  problem.k = tilewise::tensor(std::span(k), {tokens, kv_heads, dim});
  problem.v = tilewise::tensor(std::span(v), {tokens, kv_heads, dim});
  problem.out = tilewise::tensor(std::span(out), {tokens, heads, dim});
  problem.lse = tilewise::tensor(std::span(lse), {heads, tokens});
  problem.cu_seqlens_q = tilewise::tensor(std::span(starts), {4});
  problem.cu_seqlens_k = problem.cu_seqlens_q;
  problem.max_seqlen_q = 23;  // optional; a plan needs less workspace if it knows
  problem.max_seqlen_k = 23;
  tilewise::forward(problem);
  // end of snippet
  for (std::size_t c = 0; c < dim; ++c) {  // token 7 is the first of its sequence
    EXPECT_FLOAT_EQ(out[7 * heads * dim + c], v[7 * kv_heads * dim + c]);
  }
}

TEST(Interface, TheStridesSnippetWorks) {
  std::vector<float> qkv = waves(batch * length * 3 * heads * dim, 0.1f);
  std::vector<float> out(q_size);
  // snippet: strides
  // Q, K and V as one (B, S, 3, H, D) buffer: three views with the same strides, in elements.
  const auto part = [&](std::int64_t index) {
    return tilewise::tensor(qkv.data() + index * heads * dim, TILEWISE_FP32,
                            {batch, length, heads, dim},
                            {length * 3 * heads * dim, 3 * heads * dim, dim, 1});
  };
  tilewise::Problem problem;
  problem.q = part(0);
  problem.k = part(1);
  problem.v = part(2);
  // end of snippet
  problem.out = tilewise::tensor(std::span(out), {batch, length, heads, dim});
  problem.causal = 1;
  tilewise::forward(problem);
  for (std::size_t c = 0; c < dim; ++c)
    EXPECT_FLOAT_EQ(out[c], qkv[static_cast<std::size_t>(2 * heads * dim) + c]);
}

TEST(Interface, TheBFloat16SnippetWorks) {
  std::vector<std::uint16_t> q(q_size, 0x3f80), k(k_size, 0x3f80), v(k_size, 0x4000);  // 1, 1, 2
  std::vector<float> out(q_size);
  tilewise::Problem problem;
  // snippet: bf16
  problem.q = tilewise::tensor(q.data(), TILEWISE_BF16, {batch, length, heads, dim});
  problem.k = tilewise::tensor(k.data(), TILEWISE_BF16, {batch, length, kv_heads, dim});
  problem.v = tilewise::tensor(v.data(), TILEWISE_BF16, {batch, length, kv_heads, dim});
  problem.out = tilewise::tensor(std::span(out), {batch, length, heads, dim});  // fp32 is allowed
  // end of snippet
  tilewise::forward(problem);
  for (const float x : out) ASSERT_NEAR(x, 2.0f, 1e-5f);
}

TEST(Interface, TheSlicesAndMaskSnippetsAgree) {
  Layer layer;
  tilewise::Problem problem = layer.problem();
  problem.causal = 0;
  // snippet: slices
  // A prefix of 10 keys for everybody, then two causal documents of 15 tokens.
  const std::vector<std::int64_t> slices = {0,  40, 0,  10, TILEWISE_SLICE_FULL,    //
                                            10, 25, 10, 25, TILEWISE_SLICE_CAUSAL,  //
                                            25, 40, 25, 40, TILEWISE_SLICE_CAUSAL};
  problem.slices = tilewise::tensor(std::span(slices), {3, 5});
  // end of snippet
  tilewise::forward(problem);
  const std::vector<float> sliced = layer.out;
  const auto shows = [](std::int64_t i, std::int64_t j) {
    return j < 10 || (j <= i && (i < 25) == (j < 25));
  };
  std::vector<std::uint8_t> visible(length * length);
  for (std::int64_t i = 0; i < length; ++i) {
    for (std::int64_t j = 0; j < length; ++j)
      visible[static_cast<std::size_t>(i * length + j)] = shows(i, j);
  }
  problem.slices = {};
  // snippet: mask
  problem.mask = tilewise::tensor(visible.data(), TILEWISE_BOOL, {length, length});  // all B and H
  // end of snippet
  tilewise::forward(problem);
  for (std::size_t i = 0; i < q_size; ++i) ASSERT_NEAR(sliced[i], layer.out[i], 1e-5f) << i;
}

TEST(Interface, ThePoolSnippetWorks) {
  Layer layer;
  tilewise::Problem problem = layer.problem();
  // snippet: pool
  const tilewise::Pool pool(2);  // two threads, the caller's included
  tilewise::forward(problem, pool.executor());
  // end of snippet
  const std::vector<float> by_two = layer.out;
  tilewise::forward(problem);
  EXPECT_EQ(by_two, layer.out);
}

TEST(Interface, TheErrorsSnippetGivesItsMessage) {
  Layer layer;
  tilewise::Problem problem = layer.problem();
  std::string message;
  // snippet: errors
  problem.q.shape[3] = 8;
  try {
    tilewise::forward(problem);
  } catch (const tilewise::Error& error) {
    message = error.what();  // "k: head dimension is 16, must be q's 8"
  }
  // end of snippet
  EXPECT_EQ(message, "k: head dimension is 16, must be q's 8");
}

TEST(Interface, TheRegistrySnippetWorks) {
  Layer layer;
  tilewise::Problem problem = layer.problem();
  // snippet: registry
  for (const std::string& name : tilewise::kernel_names(tilewise::Operation::kForward)) {
    const std::string reason = tilewise::why_not(tilewise::Operation::kForward, name, problem);
    if (!reason.empty()) continue;  // "this machine lacks AVX-512 ..."
    tilewise::PlanOptions options;
    options.kernel = name;
    const tilewise::Plan plan(tilewise::Operation::kForward, problem, options);
    plan.run(problem, plan.make_workspace());
  }
  // end of snippet
  expect_first_row_is_first_value(layer);
  EXPECT_EQ(tilewise::kernel_names(tilewise::Operation::kForward).back(), "three_pass");
}

}  // namespace
